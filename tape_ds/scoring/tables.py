"""The tables that a run prints on the terminal; plain and wide where the output is a file."""

import itertools
import sys
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tape_ds.errors import redacted
from tape_ds.scoring.losses import Perplexity
from tape_ds.scoring.span_losses import SpanLosses

FEW = 4
"""Documents whose own tables are printed, and wrong replies: the stored results have all."""


def print_rows(rows: Mapping[str, str]) -> None:
    """Print a name and a text per line; the text literally, brackets included, but without credentials."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in rows.items():
        table.add_row(f"[bold]{key}", escape(redacted(value)))
    _print(table)


def print_loss_by_position(
    scores: Mapping[str, Mapping[str, SpanLosses]], native_length: int
) -> None:
    """Print loss by span, one row per variant, past the native length in bold: all documents together, and each where
    there are few."""
    documents = list(next(iter(scores.values())))
    tables: dict[str, dict[str, SpanLosses]] = {}
    if len(documents) > 1:
        together = {variant: SpanLosses.merge(parts.values()) for variant, parts in scores.items()}
        tables[f"{len(documents)} documents"] = together
    if len(documents) <= FEW:
        for name in documents:
            tables[name] = {variant: parts[name] for variant, parts in scores.items()}
    for name, losses_of in tables.items():
        first = next(iter(losses_of.values()))
        table = Table(
            title=f"loss by position on {escape(name)} (nats per token, from each position on)",
            title_justify="left",
        )
        table.add_column("")
        for start in first.starts:
            table.add_column(_place(start), justify="right")
        table.add_column("mean", justify="right")
        table.add_column(f">= {_place(native_length)}", justify="right")
        for variant, losses in losses_of.items():
            cells = []
            for start, nll in zip(losses.starts, losses.nll, strict=True):
                bold = "[bold]" if start >= native_length else ""
                cells.append(f"{bold}{nll:.2f}")
            past = "-"
            if losses.starts[-1] >= native_length:
                past = f"{losses.mean_between(native_length):.3f}"
            table.add_row(escape(variant), *cells, f"{losses.mean:.3f}", past)
        _print(table)


def print_perplexity(scores: Mapping[int, Perplexity], window: int) -> None:
    """Print a row per length; lengths beyond ``window``, which training has not seen, in bold."""
    table = Table(
        title="perplexity by length, on the same held-out documents", title_justify="left"
    )
    for column in ("length", "x window", "perplexity", "nats per token", "targets", "blocks"):
        table.add_column(column, justify="right")
    for length, score in sorted(scores.items()):
        bold = "[bold]" if length > window else ""
        table.add_row(
            f"{length:,}",
            f"{length / window:g}",
            f"{bold}{score.value:,.2f}",
            f"{score.nll:.4f}",
            f"{score.targets:,}",
            f"{score.blocks:,}",
        )
    _print(table)


def print_passkeys(
    found: Mapping[str, Iterable[Mapping[str, Any]]], native_length: int, unit: str = "native"
) -> None:
    """Print a row per variant and length, beyond the native length in bold, with a few wrong replies. ``unit`` names
    that length: a run's is its base's, an evaluation's the model's own."""
    table = Table(title="passkeys found", title_justify="left")
    table.add_column("")
    for column in ("prompt tokens", f"x {unit}", "found"):
        table.add_column(column, justify="right")
    table.add_column("replied instead")
    for variant, part in found.items():
        for row in part:
            length = row["length"]
            bold = "[bold]" if length > native_length else ""
            replies = []
            for reply in row["replies"]:
                if not reply["right"]:
                    # a stored result returns the words nan and inf as numbers
                    text = str(reply["reply"])
                    replies.append(f"{text!r} for {reply['key']} at {reply['depth']:.0%}")
            # the line about the rest is one of the few
            if len(replies) > FEW:
                replies[FEW - 1 :] = [f"and {len(replies) - FEW + 1} more"]
            table.add_row(
                escape(variant),
                f"{length:,}",
                f"{length / native_length:.2g}",
                f"{bold}{row['correct']} of {row['trials']}",
                escape("\n".join(replies)),
            )
        table.add_section()
    _print(table)


def print_ruler(found: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """Print RULER's scores with Wilson's intervals: a row per variant and task, a column per length."""
    rows = list(itertools.chain.from_iterable(found.values()))
    lengths = sorted(set(map(itemgetter("length"), rows)))
    table = Table(title="RULER's scores, % (95 % interval)", title_justify="left")
    table.add_column("")
    table.add_column("task")
    for length in lengths:
        table.add_column(f"{length:,}", justify="right")
    for variant, part in found.items():
        by_place = {(row["task"], row["length"]): row for row in part}
        for task in dict.fromkeys(map(itemgetter("task"), rows)):
            cells = []
            for length in lengths:
                row = by_place[task, length]
                cells.append(
                    f"{100 * row['score']:.0f} ({100 * row['low']:.0f}-{100 * row['high']:.0f})"
                )
            table.add_row(escape(variant), task, *cells)
        table.add_section()
    _print(table)


def _place(position: int) -> str:
    if position >= 1024:
        return f"{position / 1024:g}k"
    return str(position)


def _print(content: Any) -> None:
    # rich cuts to 80 columns where it finds no terminal
    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, highlight=False)
    console.print(content)
    sys.stdout.flush()
