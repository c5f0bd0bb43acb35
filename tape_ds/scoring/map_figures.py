"""Maps of pairs of tokens as PNGs."""

from pathlib import Path

import numpy as np
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tape_ds import storage
from tape_ds.scoring.maps import Map, MapKind

DPI = 110
EVEN, APART = "cividis", "PuOr"
"""Colours of numbers that grow, and of numbers around 0: both the same to colour-blind readers."""


def draw(kind: MapKind, path: Path) -> None:
    """Draw a row of panels for each head, a column for each layer, one scale of colours; whole or not at all."""
    layers, heads = (list(dict.fromkeys(getattr(each, name) for each in kind.maps)) for name in ("layer", "head"))
    found = {(each.layer, each.head): each for each in kind.maps}
    across, down = len(layers), len(heads)
    figure = Figure(figsize=(1.6 + 1.9 * across, 0.9 + 1.9 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    norm, image = _norm(kind), None
    for row, head in enumerate(heads):
        for column, layer in enumerate(layers):
            axes = panels[row][column]
            values_TT = _shown(found[layer, head])  # blank where the key comes after the query
            last = len(values_TT) + 0.5  # tokens are counted from 1
            extent = (0.5, last, last, 0.5)
            image = axes.imshow(
                values_TT, cmap=APART if kind.signed else EVEN, norm=norm, interpolation="nearest", extent=extent
            )
            axes.spines[["top", "right"]].set_visible(False)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(3, integer=True))
            if row == 0:
                axes.set_title(layer, fontsize="medium", parse_math=False)
            if column == 0:
                axes.set_ylabel(head, parse_math=False)
    assert image is not None, "a kind has a map"
    figure.suptitle(kind.name, fontsize="medium", parse_math=False)
    figure.supxlabel("key (token)", fontsize="medium")
    figure.supylabel("query (token), by head", fontsize="medium")
    bar = figure.colorbar(image, ax=panels, label=kind.unit, extend="both" if kind.signed else "neither")
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    storage.write_file(path, lambda aside: figure.savefig(aside, dpi=DPI, format="png"))


def _norm(kind: MapKind) -> Normalize:
    low, high = kind.limits()
    if not kind.rooted:
        return Normalize(low, high)
    roots = (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * np.square(x))
    return FuncNorm(roots, vmin=low, vmax=high)


def _shown(one: Map) -> np.ndarray:
    values_TT = one.values.astype(np.float32)
    blank: np.ndarray = np.where(np.tri(len(values_TT), dtype=bool), values_TT, np.nan)
    return blank
