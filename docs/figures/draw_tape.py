"""Draw the pictures of docs/tape_in_pictures.md: the state, one layer's attention and update, and what a shift changes.

    python docs/figures/draw_tape.py

The first picture holds the model's own angles, the last one logits of small models: nothing in them is made up.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from tape_ds import TapeConfig, TapeForCausalLM
from tape_ds.model.positions import registry

HERE = Path(__file__).resolve().parent
QUERY, KEY, VALUE, STATE, SCORE, SMALL = "#c7e9c0", "#c6dbef", "#fdd0a2", "#dadaeb", "#f0f0f0", "#fcbba1"
"""Fills of matrices, as in draw_kernels.py."""
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
"""Okabe and Ito's, as in tape_ds/training/plots.py."""
SHOWN = 8
"""Tokens and channels of the first picture."""
SHIFTS = (1, 4, 16, 64, 256, 1024, 4096)
VARIANTS = {
    "rope": ("rope", {}, BLUE, "o", "-"),
    "tape": ("tape", {}, GREEN, "s", "--"),
    "tape, form: separate": ("tape", {"form": "separate"}, ORANGE, "^", "-."),
    "tape, form: vector": ("tape", {"form": "vector"}, PINK, "D", ":"),
}
"""Name -> encoding, its options, colour, marker, line."""


def main() -> None:
    """Write all pictures beside this file."""
    save(start(), "tape_start.png")
    save(attention(), "tape_attention.png")
    save(update(), "tape_update.png")
    save(equivariance(), "tape_equivariance.png")


def save(figure: plt.Figure, name: str) -> None:
    """At a size that reads well on a page."""
    figure.savefig(HERE / name, dpi=110, facecolor="white")
    plt.close(figure)


def small_config(encoding: str = "tape", **options: object) -> TapeConfig:
    """Four heads of 8 channels."""
    return TapeConfig(
        position_encoding=encoding,
        position_options=options,
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )


def start() -> plt.Figure:
    """The clocks of eight tokens, the numbers of the state, and their inner products."""
    figure = plt.figure(figsize=(13, 3.9))
    states_B1TK = registry.build(small_config()).start(torch.arange(4 * SHOWN)[None, :, None])
    assert states_B1TK is not None, "tape starts from angles"
    e_TK = states_B1TK[0, 0]
    pairs = e_TK.shape[-1] // 2
    clocks = figure.add_axes((0.045, 0.1, 0.36, 0.74))
    for token in range(SHOWN):
        for pair in range(pairs):
            cosine, sine = float(e_TK[token, pair]), float(e_TK[token, pairs + pair])
            clocks.add_patch(plt.Circle((token, pair), 0.38, fill=False, color="#bbbbbb"))
            clocks.plot([token, token + 0.36 * cosine], [pair, pair - 0.36 * sine], color=BLUE, linewidth=2)
    clocks.set(xlim=(-0.6, SHOWN - 0.4), ylim=(pairs - 0.4, -0.6), aspect="equal", xlabel="token's position")
    clocks.set_yticks(range(pairs), [f"pair {pair}" for pair in range(pairs)])
    clocks.set_title("each pair of channels is a hand of a clock", fontsize=12)
    numbers = figure.add_axes((0.47, 0.1, 0.19, 0.74))
    numbers.imshow(e_TK[:SHOWN], cmap="RdBu", vmin=-1, vmax=1)
    numbers.axvline(pairs - 0.5, color="black", linewidth=1)
    numbers.set_xticks([(pairs - 1) / 2, pairs + (pairs - 1) / 2], ["cos", "sin"])
    numbers.set(ylabel="token's position")
    numbers.set_title("the state e: K numbers a token", fontsize=12)
    products = figure.add_axes((0.72, 0.1, 0.22, 0.74))
    shown = products.imshow(e_TK @ e_TK.T, cmap="cividis")
    products.set(xlabel="position m", ylabel="position n")
    products.set_title("e(n) · e(m): by n − m alone", fontsize=12)
    figure.colorbar(shown, cax=figure.add_axes((0.95, 0.16, 0.012, 0.62)))
    tidy(clocks)
    return figure


def tidy(axes: Axes) -> None:
    """No frame around a drawing."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def canvas(width: float, height: float, title: str) -> tuple[plt.Figure, Axes]:
    """A page to draw on, in units of a third of an inch or so."""
    figure = plt.figure(figsize=(13, 13 * height / width))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    axes.text(0.3, height - 0.5, title, fontsize=13, weight="bold", va="center")
    return figure, axes


def box(axes: Axes, left: float, low: float, width: float, height: float, text: str, colour: str, below: str) -> None:
    """A matrix: its name inside, its size below."""
    axes.add_patch(Rectangle((left, low), width, height, facecolor=colour, edgecolor="#555555", linewidth=1))
    axes.text(left + width / 2, low + height / 2, text, ha="center", va="center", fontsize=11.5)
    axes.text(left + width / 2, low - 0.15, below, ha="center", va="top", fontsize=9, color="#444444")


def arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], text: str = "") -> None:
    """From one matrix to the next, with what happens on the way."""
    axes.add_patch(FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=14, color="#555555", linewidth=1.2))
    axes.text((begin[0] + end[0]) / 2, max(begin[1], end[1]) + 0.2, text, ha="center", va="bottom", fontsize=10)


def attention() -> plt.Figure:
    """Rotation by the state, one softmax, a value with the state beside it."""
    figure, axes = canvas(
        26, 8.2, "One head, one softmax: the state turns queries and keys, and travels with the value"
    )
    box(axes, 0.5, 4.6, 2.2, 1.7, "q", QUERY, "T x K")
    box(axes, 0.5, 1.5, 2.2, 1.7, "k", KEY, "T x K")
    box(axes, 4.1, 3.05, 2.2, 1.7, "e", STATE, "")
    axes.text(3.95, 3.9, "as it\nis now", ha="right", va="center", fontsize=9, color="#444444")
    arrow(axes, (2.8, 5.45), (7.4, 5.45), "turned by e")
    arrow(axes, (2.8, 2.35), (7.4, 2.35))
    axes.text(5.1, 2.2, "turned by e", ha="center", va="top", fontsize=10)
    arrow(axes, (5.2, 4.8), (5.2, 5.35))
    arrow(axes, (5.2, 3.0), (5.2, 2.5))
    box(axes, 7.5, 4.6, 2.2, 1.7, "q̃", QUERY, "")
    box(axes, 7.5, 1.5, 2.2, 1.7, "k̃", KEY, "")
    arrow(axes, (9.8, 5.45), (12.2, 4.6))
    arrow(axes, (9.8, 2.35), (12.2, 3.3))
    axes.text(10.95, 3.95, "softmax(q̃ k̃ᵀ)", ha="center", va="center", fontsize=10.5)
    for row in range(6):
        axes.add_patch(Rectangle((12.3, 5.2 - 0.5 * row), 0.5 * (row + 1), 0.5, facecolor=SCORE, edgecolor="#999999"))
    axes.add_patch(Rectangle((12.3, 2.7), 3.0, 3.0, fill=False, edgecolor="#555555"))
    axes.text(12.95, 3.45, "A", fontsize=13, ha="center", va="center")
    axes.text(13.8, 2.5, "T x T, causal", ha="center", va="top", fontsize=9, color="#444444")
    axes.text(15.75, 4.2, "·", ha="center", va="center", fontsize=16)
    box(axes, 16.2, 2.7, 1.9, 3.0, "v", VALUE, "T x K")
    box(axes, 18.1, 2.7, 1.9, 3.0, "e", STATE, "T x K")
    axes.text(20.5, 4.2, "=", ha="center", va="center", fontsize=16)
    box(axes, 21.0, 2.7, 1.9, 3.0, "A v", VALUE, "")
    box(axes, 22.9, 2.7, 1.9, 3.0, "A e", STATE, "")
    arrow(axes, (21.95, 2.6), (21.95, 1.3))
    arrow(axes, (23.85, 2.6), (23.85, 1.3))
    axes.text(21.6, 1.1, "hidden states,\nas in any Llama", ha="center", va="top", fontsize=10.5)
    axes.text(24.4, 1.1, "the state's\nupdate", ha="center", va="top", fontsize=10.5)
    return figure


def update() -> plt.Figure:
    """What one token's state becomes: matrices over heads."""
    figure, axes = canvas(26, 9.4, "One token's state: a row for each head, a column for each channel")
    axes.text(0.5, 7.9, "1.  what attention brought: a matrix across heads", fontsize=11.5)
    heads(axes, 0.9, 5.1, 2.0, "W_att", SMALL, square=True)
    axes.text(3.35, 6.1, "·", fontsize=16, ha="center", va="center")
    heads(axes, 3.8, 5.1, 4.4, "A e", STATE)
    axes.text(8.75, 6.1, "+", fontsize=14, ha="center", va="center")
    heads(axes, 9.3, 5.1, 4.4, "e", STATE)
    axes.text(14.25, 6.1, "=", fontsize=14, ha="center", va="center")
    heads(axes, 14.8, 5.1, 4.4, "e after attention", STATE)
    axes.text(
        20.0, 6.1, "Channels of one head mix with the\nsame channels of other heads, never\nwith one another: "
        "a turn of all pairs\npasses through.", fontsize=10.5, va="center",
    )  # fmt: skip
    axes.text(0.5, 3.7, "2.  the position feed-forward: as small a matrix, made from the content", fontsize=11.5)
    heads(axes, 0.9, 0.9, 2.0, "M(y)", SMALL, square=True)
    axes.text(3.35, 1.9, "·", fontsize=16, ha="center", va="center")
    heads(axes, 3.8, 0.9, 4.4, "e after attention", STATE)
    axes.text(8.75, 1.9, "+", fontsize=14, ha="center", va="center")
    heads(axes, 9.3, 0.9, 4.4, "e after attention", STATE)
    axes.text(14.25, 1.9, "=", fontsize=14, ha="center", va="center")
    heads(axes, 14.8, 0.9, 4.4, "e of the next layer", STATE)
    axes.text(
        20.0, 1.9, "M(y) = W_down diag(SiLU(W_x y)) W_up,\ny what the feed-forward computed\nfor this token. "
        "W_att and W_up start\nat zero: nothing changes before\nthe first step.", fontsize=10.5, va="center",
    )  # fmt: skip
    return figure


def heads(axes: Axes, left: float, low: float, width: float, name: str, colour: str, square: bool = False) -> None:
    """A matrix of four heads, its name upon it."""
    for row in range(4):
        for column in range(4 if square else 8):
            each = width / (4 if square else 8)
            corner = left + column * each, low + row * 0.5
            axes.add_patch(Rectangle(corner, each, 0.5, facecolor=colour, edgecolor="white", linewidth=1.2))
    axes.add_patch(Rectangle((left, low), width, 2.0, fill=False, edgecolor="#555555", linewidth=1))
    axes.text(left + width / 2, low + 1.0, name, ha="center", va="center", fontsize=11.5)
    below = "heads x heads" if square else "heads x channels"
    axes.text(left + width / 2, low - 0.12, below, ha="center", va="top", fontsize=9, color="#444444")


def equivariance() -> plt.Figure:
    """How far logits move when all positions move."""
    figure = plt.figure(figsize=(9, 4.6))
    axes = figure.add_axes((0.11, 0.13, 0.6, 0.77))
    for name, (encoding, options, colour, marker, line) in VARIANTS.items():
        moved = changes(small_config(encoding, **options))
        axes.plot(SHIFTS, moved, color=colour, marker=marker, linestyle=line, label=name)
    axes.set(xscale="log", yscale="log", ylim=(1e-9, 10), xlabel="added to every position")
    axes.set_ylabel("largest change of a logit / largest logit")
    axes.set_xticks(SHIFTS, [f"{shift:,}" for shift in SHIFTS])
    axes.minorticks_off()
    axes.axhspan(1e-9, 1e-5, color="#eeeeee", zorder=0)
    axes.text(1, 2e-9, "rounding of fp32", fontsize=9, color="#555555")
    axes.set_title("What a shift of all positions changes", fontsize=12)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def changes(config: TapeConfig) -> list[float]:
    """For each shift, of a model whose every parameter has been drawn, so that the updates do something."""
    torch.manual_seed(0)
    model = TapeForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids, places = torch.randint(config.vocab_size, (4, 48)), torch.arange(48)[None]
    with torch.no_grad():
        still = model(ids).logits
        moved = [model(ids, position_ids=places + shift).logits for shift in SHIFTS]
    return [float((each - still).abs().max() / still.abs().max()) for each in moved]


if __name__ == "__main__":
    main()
