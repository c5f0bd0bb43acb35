"""Draw the pictures of docs/kernels.md: how attention walks over its tiles, and what position_mix does to one token.

    python docs/figures/draw_kernels.py

The tiles are coloured by the same bounds that the kernels compute (``key_range`` in tape_attention_tiles.py,
``_query_range`` in tape_attention_backward_kernels.py), for 1,000 tokens and blocks of 128 x 64.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

HERE = Path(__file__).resolve().parent
TOKENS = 1000
ROWS, COLUMNS = 128, 64
"""Of the axis that a program owns, and of the one it walks along."""
DOCUMENTS = [(0, 300), (300, 620), (620, 920)]
"""First token and the one behind the last; what follows is padding."""
PLAIN, MASKED, OWN = "#9ecae1", "#fdae6b", "#222222"
QUERY, KEY, VALUE, STATE, SCORE, SMALL = "#c7e9c0", "#c6dbef", "#fdd0a2", "#dadaeb", "#f0f0f0", "#fcbba1"


def main() -> None:
    """Write both pictures beside this file."""
    save(attention(), "attention.png")
    save(position_mix(), "position_mix.png")


def save(figure: plt.Figure, name: str) -> None:
    """At a size that reads well on a page."""
    figure.savefig(HERE / name, dpi=110, facecolor="white")
    plt.close(figure)


def attention() -> plt.Figure:
    """One tile of each kernel above, the walks below."""
    figure = plt.figure(figsize=(13, 9.4))
    upper = figure.add_axes((0.02, 0.53, 0.96, 0.46))
    products(upper)
    lower = [figure.add_axes((0.06 + 0.325 * place, 0.095, 0.27, 0.38)) for place in range(3)]
    walk(lower[0], "forward: a program owns queries", by_queries(None), along_keys=True)
    walk(lower[1], "forward, three documents and padding", by_queries(DOCUMENTS), along_keys=True)
    walk(lower[2], "backward: a program owns keys", by_keys(), along_keys=False)
    meaning = [
        Patch(facecolor=PLAIN, edgecolor="white", label="tile without a mask"),
        Patch(facecolor=MASKED, edgecolor="white", label="tile with a mask"),
        Patch(facecolor="white", edgecolor="lightgrey", label="never touched"),
        Patch(facecolor="none", edgecolor=OWN, linewidth=2, label="the walk of one program"),
    ]
    figure.legend(handles=meaning, loc="lower center", ncols=4, frameon=False, fontsize=11, bbox_to_anchor=(0.5, 0.0))
    return figure


def by_queries(documents: list[tuple[int, int]] | None) -> list[tuple[int, int, bool]]:
    """(query, key, masked) of every tile that the forward touches."""
    found = []
    for row in range(0, TOKENS, ROWS):
        low, high = 0, min(TOKENS, row + ROWS)
        whole = min(TOKENS, row + 1) // COLUMNS * COLUMNS
        if documents is not None:
            own = [each for each in documents if each[0] < row + ROWS and row < each[1]]
            low = min((first for first, _ in own), default=TOKENS) // COLUMNS * COLUMNS
            high = min(high, max((last for _, last in own), default=0))
            whole = low
        found += [(row, start, start >= whole) for start in range(low, high, COLUMNS)]
    return found


def by_keys() -> list[tuple[int, int, bool]]:
    """(query, key, masked) of every tile that the backward's kernels of dV and dK touch."""
    found = []
    for key in range(0, TOKENS, ROWS):
        low = key // COLUMNS * COLUMNS
        whole = TOKENS if key + ROWS > TOKENS else min(key + ROWS - 1, TOKENS)
        whole = max((whole + COLUMNS - 1) // COLUMNS * COLUMNS, low)
        found += [(start, key, start < whole) for start in range(low, TOKENS, COLUMNS)]
    return found


def walk(axes: Axes, title: str, tiles: list[tuple[int, int, bool]], along_keys: bool) -> None:
    """The matrix of scores: queries go down, keys to the right; the walk of one program is framed."""
    height, width = (ROWS, COLUMNS) if along_keys else (COLUMNS, ROWS)
    for query in range(0, TOKENS, height):
        for key in range(0, TOKENS, width):
            axes.add_patch(
                Rectangle((key, query), width, height, facecolor="white", edgecolor="#e8e8e8", linewidth=0.6)
            )
    for query, key, masked in tiles:
        colour = MASKED if masked else PLAIN
        axes.add_patch(Rectangle((key, query), width, height, facecolor=colour, edgecolor="white", linewidth=0.8))
    own = [(query, key) for query, key, _ in tiles if (query if along_keys else key) == 4 * ROWS]
    top, left = min(query for query, _ in own), min(key for _, key in own)
    bottom, right = max(query for query, _ in own) + height, max(key for _, key in own) + width
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=OWN, linewidth=2))
    start, end = (
        ((left + 24, top + 64), (right - 16, top + 64))
        if along_keys
        else ((left + 64, top + 24), (left + 64, bottom - 16))
    )
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, color=OWN, linewidth=1.2))
    for edge in (axes.axhline, axes.axvline):
        edge(TOKENS, color="grey", linestyle=":", linewidth=1)
    axes.plot([0, TOKENS], [0, TOKENS], color="grey", linewidth=0.8, linestyle="--")
    axes.set(xlim=(-6, 1032), ylim=(1032, -6), aspect="equal")
    axes.set_title(title, fontsize=12)
    axes.set_xlabel("keys", fontsize=10)
    axes.set_ylabel("queries", fontsize=10)
    axes.set_xticks([0, 256, 512, 768, 1000])
    axes.set_yticks([0, 256, 512, 768, 1000])
    axes.tick_params(labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)


def box(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], text: str, colour: str, below: str = ""
) -> None:
    """A matrix: its name inside, its size below."""
    (left, bottom), (width, height) = corner, size
    axes.add_patch(Rectangle(corner, width, height, facecolor=colour, edgecolor="#555555", linewidth=1))
    axes.text(left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=11)
    if below:
        axes.text(left + width / 2, bottom - 0.12, below, ha="center", va="top", fontsize=8.5, color="#444444")


def sign(axes: Axes, x: float, y: float, text: str, size: float = 13) -> None:
    """What stands between two matrices."""
    axes.text(x, y, text, ha="center", va="center", fontsize=size)


def products(axes: Axes) -> None:
    """What one tile costs in each of the three kernels: a product of width K is 1 u."""
    axes.set(xlim=(0, 26), ylim=(0, 8.6))
    axes.axis("off")
    axes.text(0.2, 8.25, "One tile of the forward: 3 products, 2 accumulators", fontsize=12, weight="bold")
    box(axes, (0.4, 5.4), (1.6, 2.2), "q", QUERY, "128 x K")
    sign(axes, 2.4, 6.5, "·")
    box(axes, (2.8, 5.7), (1.1, 1.6), "kᵀ", KEY, "K x 64")
    sign(axes, 4.6, 6.5, "→\nexp2", 11)
    box(axes, (5.3, 5.4), (1.1, 2.2), "P", SCORE, "128 x 64")
    sign(axes, 6.8, 6.5, "·")
    box(axes, (7.2, 5.95), (1.6, 1.1), "v", VALUE, "64 x K")
    box(axes, (8.8, 5.95), (1.6, 1.1), "e", STATE, "64 x K")
    sign(axes, 10.9, 6.5, "+=", 12)
    box(axes, (11.4, 5.4), (1.6, 2.2), "A v", VALUE, "128 x K")
    box(axes, (13.0, 5.4), (1.6, 2.2), "A e", STATE, "128 x K")
    axes.text(
        15.3, 7.6,
        "q kᵀ   1 u\nP v    1 u\nP e    1 u\n\nRoPE's attention is the same without e: 2 u.\n"
        "Two calls of it, one for v and one for e: 4 u.",
        fontsize=10.5, va="top", family="monospace",
    )  # fmt: skip

    axes.text(0.2, 4.3, "One tile of {dV, dE}: 3 products", fontsize=12, weight="bold")
    box(axes, (0.4, 1.6), (1.1, 2.0), "k", KEY, "128 x K")
    sign(axes, 1.85, 2.6, "·")
    box(axes, (2.2, 1.9), (1.6, 1.3), "qᵀ", QUERY, "K x 64")
    sign(axes, 4.3, 2.6, "→", 11)
    box(axes, (4.8, 1.6), (1.2, 2.0), "Pᵀ", SCORE, "128 x 64")
    sign(axes, 6.35, 2.6, "·")
    box(axes, (6.7, 2.05), (1.4, 1.1), "dOᵥ", VALUE)
    box(axes, (8.1, 2.05), (1.4, 1.1), "dOₑ", STATE)
    sign(axes, 9.85, 2.6, "+=", 11)
    box(axes, (10.2, 1.6), (1.15, 2.0), "dV", VALUE)
    box(axes, (11.35, 1.6), (1.15, 2.0), "dE", STATE)
    axes.plot([12.9, 12.9], [1.0, 4.5], color="#bbbbbb", linewidth=1)

    axes.text(13.2, 4.3, "One tile of {dK, dQ}: 5 products", fontsize=12, weight="bold")
    box(axes, (13.3, 1.6), (1.2, 2.0), "Pᵀ", SCORE, "k qᵀ again")
    sign(axes, 14.85, 2.6, "∘ (")
    box(axes, (15.25, 1.6), (1.3, 2.0), "v dOᵥᵀ", VALUE)
    sign(axes, 16.85, 2.6, "+")
    box(axes, (17.15, 1.6), (1.3, 2.0), "e dOₑᵀ", STATE)
    sign(axes, 18.95, 2.6, "− δ) =", 11)
    box(axes, (19.55, 1.6), (1.2, 2.0), "dSᵀ", SMALL, "once for both")
    axes.text(21.1, 3.15, "· q  +=  dK", fontsize=11, va="center")
    axes.text(21.1, 2.05, "dS · k  →  dQ\n(atomic, fp32)", fontsize=11, va="center")
    axes.text(
        0.2,
        0.35,
        "u: all tiles of one product of width K.  Backward: 3 u + 5 u = 8 u;  RoPE's: 5 u;  two calls of it: 10 u.",
        fontsize=11,
    )


def position_mix() -> plt.Figure:
    """One token of one row: matrices over heads, columns are channels."""
    figure = plt.figure(figsize=(13, 4.9))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set(xlim=(0, 26), ylim=(0.6, 10.4))
    axes.axis("off")
    axes.text(0.3, 9.9, "position_mix: one token, all in registers", fontsize=13, weight="bold")
    axes.text(0.3, 9.2, "1. what attention brought, across heads", fontsize=11)
    box(axes, (0.5, 6.3), (1.9, 1.9), "W_att", SMALL, "G x H")
    sign(axes, 2.8, 7.25, "·")
    box(axes, (3.2, 6.1), (4.0, 2.3), "A e", STATE, "H x K, read")
    sign(axes, 7.65, 7.25, "+")
    box(axes, (8.1, 6.3), (4.0, 1.9), "d", STATE, "G x K, read")
    sign(axes, 12.6, 7.25, "=")
    box(axes, (13.1, 6.3), (4.0, 1.9), "d + u", "white", "G x K, fp32 registers")

    axes.text(0.3, 5.0, "2. the feed-forward as one small matrix", fontsize=11)
    box(axes, (0.5, 2.1), (2.8, 1.9), "W_down", SMALL, "G x I")
    sign(axes, 3.95, 3.05, "· diag", 12)
    box(axes, (4.6, 1.65), (0.6, 2.8), "", VALUE)
    axes.text(4.9, 3.05, "SiLU(g)", ha="center", va="center", rotation=90, fontsize=10)
    axes.text(4.9, 1.5, "I, read", ha="center", va="top", fontsize=8.5, color="#444444")
    sign(axes, 5.55, 3.05, "·")
    box(axes, (5.9, 1.65), (1.6, 2.8), "W_up", SMALL, "I x G")
    sign(axes, 7.95, 3.05, "=")
    box(axes, (8.4, 2.25), (1.6, 1.6), "M", SCORE, "G x G")
    sign(axes, 10.5, 3.05, "·  (")
    box(axes, (11.0, 2.1), (3.4, 1.9), "start", KEY, "1 or G x K, fp32, read")
    sign(axes, 14.7, 3.05, "+")
    box(axes, (15.0, 2.1), (3.4, 1.9), "d + u", "white", "from step 1")
    sign(axes, 18.85, 3.05, ")  +")
    box(axes, (19.25, 2.1), (2.7, 1.9), "d + u", "white")
    sign(axes, 22.25, 3.05, "=")
    box(axes, (22.55, 2.1), (3.2, 1.9), "d'", STATE, "G x K, written once")
    axes.add_patch(FancyArrowPatch((15.6, 5.7), (16.5, 4.05), arrowstyle="-|>", mutation_scale=13, color="#555555"))
    axes.text(
        18.3, 8.2,
        "Weights are loaded once for 8 tokens.\n"
        "d, A e and g are read once, d' is\n"
        "written once; nothing else leaves\n"
        "the registers. Multiplications:\n"
        "  rank by rank  2 I G K\n"
        "  through M     I G G + G G K",
        fontsize=10.5, va="top", family="monospace",
    )  # fmt: skip
    return figure


if __name__ == "__main__":
    main()
