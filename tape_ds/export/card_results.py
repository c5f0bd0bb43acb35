"""The results of a run as Markdown: loss by position, and every other figure that is a list of rows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult

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
"""Figures that are tables of rows, and what they are called."""


def text(result: Result) -> str:
    """Return all tables, or that there are none."""
    parts = [_loss_by_position(result.figures.get(LOSS) or {})]
    parts += [f"{TITLES[name]}:\n\n{_rows(rows)}" for name, rows in _row_figures(result).items()]
    found = [part for part in parts if part]
    return "\n\n".join(found) if found else "None: the run scored nothing."


def measured(result: Result | None) -> list[str]:
    """Return what the tables hold, in words."""
    if result is None:
        return []
    loss = ["loss by position on the documents named"] if result.figures.get(LOSS) else []
    return [*loss, *(TITLES[name].lower() for name in _row_figures(result))]


def evaluations(result: Result, trained: str | None) -> list[EvalResult]:
    """Return what the hub shows of the results, in its words: rows of the variant that was exported.

    Args:
        result: the run's.
        trained: what the tables call the exported weights; None: nothing was trained, and they are called ``...,
            untrained``.
    """

    def exported(name: str | None) -> bool:
        return name is None or (name.endswith(", untrained") if trained is None else name == trained)

    found = []
    for variant, parts in (result.figures.get(LOSS) or {}).items():
        if exported(variant):
            losses = SpanLosses.merge(map(SpanLosses.from_dict, parts.values()))
            found.append(_evaluation("held-out-documents", ", ".join(map(shown, parts)), "loss", losses.mean))
    rows = _row_figures(result)
    for row in filter(lambda row: exported(row.get("variant")), rows.get("passkey", [])):
        found.append(_evaluation("passkey", f"{row['length']} tokens", "accuracy", row["accuracy"]))
    for row in rows.get("perplexity", []):
        found.append(_evaluation("held-out-documents", f"{row['length']} tokens", "perplexity", row["perplexity"]))
    for row in filter(lambda row: row["when"] == "after", rows.get("answer_loss", [])):
        found.append(_evaluation("scrolls", result.config.get("dataset", "scrolls"), "loss", row["nll"]))
    return [each for each in found if isinstance(each.metric_value, (int, float)) and math.isfinite(each.metric_value)]


def _evaluation(dataset: str, part: str, metric: str, value: float) -> EvalResult:
    return EvalResult(
        task_type="text-generation",
        dataset_type=dataset,
        dataset_name=dataset,
        dataset_config=part,
        metric_type=metric,
        metric_value=value,
    )


def _loss_by_position(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of all documents together, a row per variant."""
    merged = {variant: SpanLosses.merge(map(SpanLosses.from_dict, parts.values())) for variant, parts in scores.items()}
    if not merged:
        return ""
    first = next(iter(merged.values()))
    documents = ", ".join(f"`{shown(name)}`" for name in next(iter(scores.values())))
    head = ["", *(f"from {start:,}" for start in first.starts), "mean"]
    rows = [[name, *(f"{nll:.3f}" for nll in losses.nll), f"{losses.mean:.3f}"] for name, losses in merged.items()]
    caption = f"Loss by position (nats per token, mean over spans of {first.span:,} tokens) on {documents}, held out:"
    return f"{caption}\n\n{markdown_table(head, rows, 'l')}"


def _row_figures(result: Result) -> dict[str, list[Mapping[str, Any]]]:
    """Return figures of :data:`TITLES` that hold rows; a mapping's values are its rows."""
    found = {}
    for name in TITLES:
        figure = result.figures.get(name) or []
        if rows := list(figure.values() if isinstance(figure, dict) else figure):
            found[name] = rows
    return found


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of one figure; entries that are lists or mappings are left to the stored file."""
    columns = [key for key in rows[0] if not any(isinstance(row.get(key), (list, dict)) for row in rows)]
    return markdown_table(columns, [[_cell(row.get(key)) for key in columns] for row in rows], "l")


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
