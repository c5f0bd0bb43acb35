"""Maps of pairs of tokens as pictures: a PNG of some layers and heads, and a page with all of them.

Tokens and names come from anybody's texts and models: the page escapes them, and runs no script.
"""

import base64
import io
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import MaxNLocator

from evaluation.pages import render
from evaluation.pages.maps import Map, MapKind, some
from tape_ds import storage

LAYERS, HEADS = 5, 3
"""Panels across and down at most; of more, some that lie evenly apart."""
DPI = 110
EVEN, APART = "cividis", "PuOr"
"""Colours of numbers that grow, and of numbers around 0: both the same to colour-blind readers."""


def draw(kind: MapKind, path: Path) -> None:
    """Draw a row of panels for each head, a column for each layer, one scale of colours; whole or not at all."""
    layers, heads = (list(dict.fromkeys(getattr(each, name) for each in kind.maps)) for name in ("layer", "head"))
    chosen = [some(layers, LAYERS), some(heads, HEADS)]
    found = {(each.layer, each.head): each for each in kind.maps}
    across, down = (len(each) for each in chosen)
    figure = Figure(figsize=(1.6 + 1.9 * across, 0.9 + 1.9 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    norm, image = _norm(kind), None
    for row, head in enumerate(chosen[1]):
        for column, layer in enumerate(chosen[0]):
            axes = panels[row][column]
            values_TT = _shown(found[layer, head])
            last = len(values_TT) + 0.5  # tokens are counted from 1
            extent = (0.5, last, last, 0.5)
            image = axes.imshow(values_TT, cmap=_colours(kind), norm=norm, interpolation="nearest", extent=extent)
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


def page(kinds: Sequence[MapKind], tokens: Sequence[str], title: str, intro: str) -> str:
    """Return all maps as one HTML file that needs nothing else.

    Args:
        kinds: each with one map at least, all over the same tokens.
        tokens: T of them, as they are shown.
        title, intro: plain text.
    """
    shown = []
    for kind in kinds:
        norm, (low, high) = _norm(kind), kind.limits()
        by_layer = groupby(kind.maps, lambda each: each.layer)
        layers = [(layer, [(each.head, picture(each, kind, norm)) for each in maps]) for layer, maps in by_layer]
        scale = _png(colormaps[_colours(kind)](np.linspace(0, 1, 64))[None])
        shown.append({"kind": kind, "low": f"{low:.3g}", "high": f"{high:.3g}", "scale": scale, "layers": layers})
    return render.fill("maps.html", title=title, intro=intro, tokens=tokens, shown=shown)


def picture(one: Map, kind: MapKind, norm: Normalize | None = None) -> str:
    """Return a map as a URL that holds a PNG of it: a pixel a pair, queries downwards, clear where none is."""
    pixels = colormaps[_colours(kind)](np.ma.masked_invalid((norm or _norm(kind))(_shown(one))))
    pixels[np.triu_indices(len(pixels), 1)] = 0
    return _png(pixels)


def _png(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    imsave(file, pixels, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _colours(kind: MapKind) -> str:
    return APART if kind.signed else EVEN


def _norm(kind: MapKind) -> Normalize:
    low, high = kind.limits()
    if not kind.rooted:
        return Normalize(low, high)
    roots = (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * np.square(x))
    return FuncNorm(roots, vmin=low, vmax=high)


def _shown(one: Map) -> np.ndarray:
    """Blank where the key is behind the query."""
    values_TT = one.values.astype(np.float32)
    blank: np.ndarray = np.where(np.tri(len(values_TT), dtype=bool), values_TT, np.nan)
    return blank
