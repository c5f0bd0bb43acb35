"""Maps of pairs of tokens, a number for each query and each key up to it, drawn as PNGs by layer and head."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tape_ds import storage

DPI = 110
EVEN, APART = "cividis", "PuOr"
"""Colours of growing numbers, and of numbers around 0; both suit colour-blind readers."""
SHARE_WITHIN = 0.998
"""Share of signed numbers within the scale of colours: a single pair would make the others pale."""


@dataclass(frozen=True)
class Map:
    layer: str
    head: str
    values: np.ndarray
    """float [T, T]; the part above the diagonal is not shown."""


@dataclass(frozen=True)
class MapKind:
    """Maps of one quantity, which share their colours."""

    name: str
    unit: str
    maps: Sequence[Map]
    signed: bool = False
    """Whether numbers are around 0, in two colours."""
    rooted: bool = False
    """Whether colours follow the square root of a number, which shows small numbers next to large ones."""

    def limits(self) -> tuple[float, float]:
        """Return the numbers of the first and the last colour."""
        shown = np.concatenate([each.values[np.tril_indices(len(each.values))] for each in self.maps])
        low, high = float(shown.min()), float(shown.max())
        if self.signed:
            high = float(np.quantile(np.abs(shown), SHARE_WITHIN)) or max(-low, high) or 1.0
            return -high, high
        low = min(low, 0.0) if self.rooted else low
        return (low, high) if high > low else (low - 0.5, low + 0.5)


def draw(kind: MapKind, path: Path) -> None:
    """Draw a row of panels for each head and a column for each layer, with one scale of colours."""
    layers, heads = (list(dict.fromkeys(getattr(each, name) for each in kind.maps)) for name in ("layer", "head"))
    values = {(each.layer, each.head): each.values for each in kind.maps}
    figure = Figure(figsize=(1.6 + 1.9 * len(layers), 0.9 + 1.9 * len(heads)), layout="constrained")
    panels = figure.subplots(len(heads), len(layers), squeeze=False, sharex=True, sharey=True)
    low, high = kind.limits()
    norm = Normalize(low, high)
    if kind.rooted:
        root = lambda x: np.sign(x) * np.sqrt(np.abs(x))  # noqa: E731
        norm = FuncNorm((root, lambda x: np.sign(x) * np.square(x)), vmin=low, vmax=high)
    for row, head in enumerate(heads):
        for column, layer in enumerate(layers):
            axes = panels[row][column]
            values_TT = values[layer, head].astype(np.float32)
            values_TT = np.where(np.tri(len(values_TT), dtype=bool), values_TT, np.nan)  # blank after the query
            last = len(values_TT) + 0.5  # tokens are counted from 1
            image = axes.imshow(
                values_TT,
                cmap=APART if kind.signed else EVEN,
                norm=norm,
                interpolation="nearest",
                extent=(0.5, last, last, 0.5),
            )
            axes.spines[["top", "right"]].set_visible(False)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(3, integer=True))
            if row == 0:
                axes.set_title(layer, fontsize="medium", parse_math=False)
            if column == 0:
                axes.set_ylabel(head, parse_math=False)
    figure.suptitle(kind.name, fontsize="medium", parse_math=False)
    figure.supxlabel("key (token)", fontsize="medium")
    figure.supylabel("query (token), by head", fontsize="medium")
    bar = figure.colorbar(image, ax=panels, label=kind.unit, extend="both" if kind.signed else "neither")
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    storage.write_file(path, lambda part: figure.savefig(part, dpi=DPI, format="png"))
