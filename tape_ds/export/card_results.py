"""Format the results of a run for its model card: loss by position, and every figure that is a list of rows."""

from collections.abc import Mapping
from typing import Any

from tape_ds.export.redaction import shown
from tape_ds.markdown_table import markdown_table
from tape_ds.results import Result
from tape_ds.scoring.span_losses import SpanLosses

LOSS = "loss_by_position"
TITLES = {
    "passkey": "Passkeys found",
    "perplexity": "Perplexity by length",
    "answer_loss": "Loss on held-out answers, nats per token",
}
"""Titles of the figures that are tables of rows."""


def text(result: Result) -> str:
    """Return all tables as Markdown, or a sentence that there are none."""
    parts = []
    if scores := result.figures.get(LOSS):
        # all documents together, a row for each variant
        merged = {
            variant: SpanLosses.merge(map(SpanLosses.from_dict, by_document.values()))
            for variant, by_document in scores.items()
        }
        first = next(iter(merged.values()))
        documents = ", ".join(f"`{shown(name)}`" for name in next(iter(scores.values())))
        head = ["", *(f"from {start:,}" for start in first.starts), "mean"]
        rows = [[name, *(f"{nll:.3f}" for nll in losses.nll), f"{losses.mean:.3f}"] for name, losses in merged.items()]
        spans = f"nats per token, mean over spans of {first.span:,} tokens"
        parts.append(f"Loss by position ({spans}) on {documents}, held out:\n\n{markdown_table(head, rows, 'l')}")

    for name, figure in _row_figures(result).items():
        # entries that are lists or mappings are only in the stored file
        columns = [key for key in figure[0] if not any(isinstance(row.get(key), (list, dict)) for row in figure)]
        cells = [[_cell(row.get(key)) for key in columns] for row in figure]
        parts.append(f"{TITLES[name]}:\n\n{markdown_table(columns, cells, 'l')}")
    return "\n\n".join(parts) if parts else "None: the run scored nothing."


def measured(result: Result | None) -> list[str]:
    """Return what the tables contain, in words."""
    if result is None:
        return []
    loss = ["loss by position on the documents named"] if result.figures.get(LOSS) else []
    return [*loss, *(TITLES[name].lower() for name in _row_figures(result))]


def _row_figures(result: Result) -> dict[str, list[Mapping[str, Any]]]:
    """Return the figures of :data:`TITLES` that have rows; a mapping's values are its rows."""
    found = {}
    for name in TITLES:
        figure = result.figures.get(name) or []
        if rows := list(figure.values() if isinstance(figure, dict) else figure):
            found[name] = rows
    return found


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
