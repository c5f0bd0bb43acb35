"""Maps of pairs of tokens as one HTML file that needs nothing else: a canvas, three choices, and the numbers of the
pair under the pointer.

The page's one script is its own, named by its hash in the page's policy: nothing else runs, and nothing is loaded.
Tokens and names come from anybody's texts and models. They travel as JSON without a ``<`` and are shown as plain text.
"""

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.pages import html

SCRIPT, STYLE = (Path(__file__).with_name(f"maps.{kind}") for kind in ("js", "css"))
EVEN, APART = "cividis", "PuOr"
"""Colours of numbers that grow, and of numbers around 0: both the same to colour-blind readers."""
SHADES = 256
SHARE_WITHIN = 0.998
"""Of signed numbers."""


@dataclass(frozen=True)
class Map:
    """A number for each query and each key up to it."""

    layer: str
    head: str
    values: np.ndarray
    """float [T, T]; what is above the diagonal is not shown."""


@dataclass(frozen=True)
class Kind:
    """Maps of one quantity, which share their colours."""

    name: str
    unit: str
    """What a number is."""
    maps: Sequence[Map]
    signed: bool = False
    """Numbers around 0, in two colours."""
    rooted: bool = False
    """Colours follow the square root of a number, so that small ones are seen beside large ones."""

    def limits(self) -> tuple[float, float]:
        """Numbers of the first and the last colour; the few largest of signed ones all have the last, or a single pair
        would leave the others pale."""
        seen = np.concatenate([below(each.values) for each in self.maps])
        low, high = float(seen.min()), float(seen.max())
        if self.signed:
            high = float(np.quantile(np.abs(seen), SHARE_WITHIN)) or max(-low, high) or 1.0
            return -high, high
        low = min(low, 0.0) if self.rooted else low
        return (low, high) if high > low else (low - 0.5, low + 0.5)

    @property
    def colours(self) -> str:
        """matplotlib's name of them."""
        return APART if self.signed else EVEN


def below(values_TT: np.ndarray) -> np.ndarray:
    """Of each query the keys up to itself, one query after another: [T (T + 1) / 2]."""
    lower: np.ndarray = values_TT[np.tril_indices(len(values_TT))]
    return lower


def page(kinds: Sequence[Kind], tokens: Sequence[str], title: str, intro: str) -> str:
    """The whole file.

    Args:
        kinds: each with one map at least, all over the same tokens.
        tokens: T of them, as they are shown.
        title, intro: plain text.
    """
    script = SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    content = {"tokens": list(tokens), "kinds": [_kind(each) for each in kinds]}
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{escape(title)}</title>\n'
        f"<style>\n{html.STYLE.read_text(encoding='utf-8')}{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{escape(title)}</h1>\n<p>{escape(intro)}</p>\n</header>\n<main>\n{_FRAME}</main>\n"
        f'<script type="application/json" id="content">{_json(content)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


_FRAME = """<noscript>
<p class="note loud">This page draws with a script; the PNG files beside it need none.</p>
</noscript>
<form class="choices">
<label>Show <select id="kind"></select></label>
<label>Layer <select id="layer"></select></label>
<label>Head <select id="head"></select></label>
</form>
<figure class="map">
<figcaption>Queries from top to bottom, keys from left to right; arrow keys move from pair to pair.</figcaption>
<div class="sheet">
<canvas id="sheet" tabindex="0" role="img" aria-describedby="pair"></canvas><div id="mark"></div>
</div>
<p class="scale"><span id="low"></span><canvas id="scale" width="256" height="1" aria-hidden="true"></canvas>
<span id="high"></span> <span id="unit"></span></p>
<p><output id="pair" aria-live="polite"></output></p>
</figure>
<p class="text" id="text" aria-label="The text: each token shaded by the chosen query's number for it"></p>
"""


def _kind(kind: Kind) -> dict[str, Any]:
    low, high = kind.limits()
    import matplotlib

    shades = (matplotlib.colormaps[kind.colours](np.linspace(0, 1, SHADES))[:, :3] * 255).round().astype(np.uint8)
    return {
        "name": kind.name,
        "unit": kind.unit,
        "low": low,
        "high": high,
        "rooted": kind.rooted,
        "signed": kind.signed,
        "colours": _base64(shades),
        "maps": [
            {"layer": each.layer, "head": each.head, "values": _base64(_halves(each.values))} for each in kind.maps
        ],
    }


def _halves(values_TT: np.ndarray) -> np.ndarray:
    """Little-endian float16; what is too large for it is its largest number."""
    largest = float(np.finfo(np.float16).max)
    return below(values_TT).clip(-largest, largest).astype("<f2")


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _json(content: Any) -> str:
    """JSON that no HTML parser finds a tag or an entity in."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def size(maps: int, tokens: int) -> int:
    """Bytes of a page with so many maps, roughly."""
    return math.ceil(maps * tokens * (tokens + 1) * 4 / 3)
