"""The pictures of results: the loss as it fell, the loss at each position of a long document, position updates.

Drawn without a display. Colours are Okabe and Ito's, which stay apart for colour-blind readers; line style and marker
differ as well, so that a printed page works too.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from tape_ds import storage
from tape_ds.numbers import length
from tape_ds.scoring import differences as scales
from tape_ds.scoring.span_losses import SpanLosses

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MANY_COLOURS = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)
"""Ten that stay apart (Petroff 2021, arXiv:2107.02270), for more lines than Okabe and Ito have colours."""
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def colours(lines: int) -> tuple[str, ...]:
    """Return the colours of a picture with so many lines."""
    if lines <= len(COLOURS):
        return COLOURS
    return MANY_COLOURS


def loss_curve(history: Iterable[Mapping[str, Any]], path: Path) -> Path:
    """Draw training loss, and its running mean, against the optimizer step, as a PNG. A loss that is not finite is
    marked with a red line. Raises ValueError when no entry has a loss."""
    logged = [entry for entry in history if "loss" in entry]
    if not logged:
        raise ValueError("history holds no entry with a loss: nothing to draw")
    steps = np.array([int(entry["step"]) for entry in logged])
    losses = np.array([float(entry["loss"]) for entry in logged])
    finite = np.isfinite(losses)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = _tidy(figure.add_subplot())
    marker = "." if len(losses) <= 100 else ""
    drawn = np.where(finite, losses, np.nan)
    axes.plot(steps, drawn, color=COLOURS[0], lw=1, marker=marker, label="training")
    if len(losses) >= 8:
        # sequences differ more than a few steps change
        width = max(min(8, len(losses) // 2), len(losses) // 10)
        # over entries that are finite: one that is not would blank a whole window
        means = pd.Series(losses[finite], index=steps[finite]).rolling(width).mean()[width - 1 :]
        label = f"training, mean of {width} entries"
        axes.plot(means.index, means, color=COLOURS[4], lw=2, label=label)
    for step in steps[~finite]:
        axes.axvline(step, color="#CC0000", lw=1, alpha=0.6)
    axes.set(xlabel="optimizer step", ylabel="loss (nats per token)", title="Loss during training")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return write_picture(figure, path)


def loss_by_position(
    variants: Mapping[str, SpanLosses],
    path: Path,
    native_length: int | None,
    reference: str | None = None,
) -> Path:
    """Draw the loss in each span of positions, a line for each of ``variants``, as a PNG; below it, where there are two
    or more, the differences from ``reference`` (None: the median of each span). Stretches of a document differ far more
    than good models do: without the differences, lines cover one another. ``native_length`` is marked by a dashed line.
    A span whose loss is not finite leaves a gap, and the legend counts them."""
    end = max(_stops(losses)[-1] for losses in variants.values())
    step = scales.tick_step(end)
    halves = min(len(variants), 2)
    figure = Figure(figsize=(10, 2.5 + 2.5 * halves), layout="constrained")
    upper, *lower = figure.subplots(halves, 1, sharex=True, squeeze=False)[:, 0]
    palette = colours(len(variants))
    curves = {}
    for name, losses in variants.items():
        middles = (np.array(losses.starts) + _stops(losses)) / 2
        curves[name] = dict(zip(middles.tolist(), losses.nll, strict=True))
    differences = scales.less_reference(curves, reference)

    for axes in (upper, *lower):
        drawn = differences if axes in lower else curves
        _tidy(axes)
        for index, (name, points) in enumerate(drawn.items()):
            values = np.array([*points.values()])
            finite = np.isfinite(values)
            label = name
            if not finite.all():
                label = f"{name} ({(~finite).sum()} spans not finite)"
            axes.plot(
                [*points],
                np.where(finite, values, np.nan),
                color=palette[index % len(palette)],
                linestyle=STYLES[index % len(STYLES)],
                # a second round of the colours has other markers
                marker=MARKERS[(index + index // len(palette)) % len(MARKERS)],
                markersize=5,
                label=label,
            )
        if native_length is not None:
            axes.axvline(
                native_length,
                color="0.35",
                linestyle="--",
                lw=1.2,
                label=f"native length {native_length:,}",
            )
        axes.set(xlabel="position in the document (tokens)", xlim=(0, end))
        # ticks at multiples of a power of two, at most nine, written 0, 2k, 4k ... as lengths in this field are
        axes.xaxis.set_major_locator(MultipleLocator(step))
        axes.xaxis.set_major_formatter(_as_length if step >= 1024 else "{x:g}")
        if axes in lower:
            limit = scales.height(drawn)
            axes.set_ylim(-limit, limit)
            axes.set(ylabel=f"difference from\n{reference or 'the median'}")
    upper.set(xlabel=None if lower else upper.get_xlabel(), ylabel="loss (nats per token)")
    upper.set_title(f"Loss by position, scored to {length(end)}")
    # below, so that the lines have the whole width
    figure.legend(
        *upper.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=3
    )
    return write_picture(figure, path)


def position_updates(measured: Sequence[tuple[int, Mapping[str, Any]]], path: Path) -> Path:
    """Draw statistics of the position updates of each layer
    (:class:`tape_ds.scoring.inspection.UpdateStatistics`), a line for each step, darker with time, as a PNG."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = {
        "deviation": "|d| / |e|",
        "along_own": "share of |d|² along its own state",
        "first_token": "weight of the first token in A e",
    }
    for axes, (name, label) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        _tidy(axes)
        for at, (step, lists) in enumerate(measured):
            # None, of a layer without updates, becomes NaN
            values = np.array(lists[name], dtype=float)
            shade = 0.25 + 0.75 * (at + 1) / len(measured)
            layers = range(1, len(values) + 1)
            axes.plot(
                layers, values, color=COLOURS[0], alpha=shade, marker=".", label=f"step {step}"
            )
        axes.set(xlabel="layer that reads the state", title=label)
        axes.set_ylim(bottom=0)
        # a share
        if name == "along_own":
            axes.set_ylim(top=1.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return write_picture(figure, path)


def _tidy(axes: Axes) -> Axes:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def write_picture(figure: Figure, path: Path) -> Path:
    storage.write_file(path, lambda aside: figure.savefig(aside, dpi=150, format="png"))
    return path


def _stops(losses: SpanLosses) -> list[int]:
    """Return the position after the last of each span; only the last span can be shorter."""
    stops = [start + losses.span for start in losses.starts]
    stops[-1] = losses.starts[-1] + min(losses.span, losses.counts[-1])
    return stops


def _as_length(x: float, _: object) -> str:
    return length(round(x))
