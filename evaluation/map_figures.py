"""Maps of pairs of tokens as a PNG: a row of panels for each head, a column for each layer, one scale of colours."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from evaluation.pages.maps import Kind, Map
from tape_ds import storage

LAYERS, HEADS = 5, 3
"""Panels across and down at most; of more, some that lie evenly apart."""
DPI = 110


def draw(kind: Kind, path: Path) -> Path:
    """The picture at ``path``, whole or not at all."""
    layers, heads = (list(dict.fromkeys(getattr(each, name) for each in kind.maps)) for name in ("layer", "head"))
    chosen = [some(layers, LAYERS), some(heads, HEADS)]
    found = {(each.layer, each.head): each for each in kind.maps}
    across, down = (len(each) for each in chosen)
    figure = Figure(figsize=(1.6 + 1.9 * across, 0.9 + 1.9 * down), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    low, high = kind.limits()
    norm = FuncNorm((_root, _square) if kind.rooted else (_same, _same), vmin=low, vmax=high)
    image = None
    for row, head in enumerate(chosen[1]):
        for column, layer in enumerate(chosen[0]):
            axes = panels[row][column]
            values_TT = _shown(found[layer, head])
            last = len(values_TT) + 0.5  # tokens are counted from 1
            image = axes.imshow(
                values_TT,
                cmap=kind.colours,
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
    assert image is not None, "a kind has a map"
    figure.suptitle(kind.name, fontsize="medium", parse_math=False)
    figure.supxlabel("key (token)", fontsize="medium")
    figure.supylabel("query (token), by head", fontsize="medium")
    bar = figure.colorbar(image, ax=panels, label=kind.unit, extend="both" if kind.signed else "neither")
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    storage.write_file(path, lambda aside: figure.savefig(aside, dpi=DPI, format="png"))
    return path


def some(names: list[str], most: int) -> list[str]:
    """At most so many of them, evenly apart, the first and the last among them.

    >>> some(list("abcdefg"), 3)
    ['a', 'd', 'g']
    """
    if len(names) <= most:
        return names
    return [names[round(place)] for place in np.linspace(0, len(names) - 1, most)]


def _shown(one: Map) -> np.ndarray:
    """Blank where the key is behind the query."""
    values_TT = one.values.astype(np.float32)
    blank: np.ndarray = np.where(np.tri(len(values_TT), dtype=bool), values_TT, np.nan)
    return blank


def _same(values: np.ndarray) -> np.ndarray:
    return values


def _root(values: np.ndarray) -> np.ndarray:
    rooted: np.ndarray = np.sign(values) * np.sqrt(np.abs(values))
    return rooted


def _square(values: np.ndarray) -> np.ndarray:
    squared: np.ndarray = np.sign(values) * np.square(values)
    return squared
