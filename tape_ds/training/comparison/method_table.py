"""The table of extension methods: what each was trained on, its loss within and past the native length, its cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from tape_ds import results
from tape_ds.scoring.loss_by_position import SpanLosses
from tape_ds.training.comparison import summary
from tape_ds.training.metrics import gibibytes, number

Row = Mapping[str, Any]


def row(label: str, result: results.Result, differing: Sequence[str]) -> dict[str, Any]:
    """What one run came to; of its configuration the ``differing`` fields."""
    figures = result.figures
    scores = figures["loss_by_position"]
    own = next(reversed(scores), None)  # a run scores what it made last
    return {
        "method": label,
        "trained_parameters": figures["parameters"]["trained"],
        "tokens": figures["tokens"],
        "loss": _losses(scores[own], figures["native_length"]) if own else None,
        "passkey": {str(e["length"]): {n: e[n] for n in ("correct", "trials")} for e in figures["passkey"]},
        "tokens_per_second": figures["tokens_per_second"],
        "peak_memory_bytes": figures["peak_memory_bytes"],
        "seconds": summary.seconds(result),
        "settings": {name: result.config[name] for name in differing if name in result.config},
        "commit": result.commit,
    }


def row_untouched(variant: str, result: results.Result) -> dict[str, Any]:
    """The model before anything was done to it, as a run scored it under the name ``variant``."""
    figures = result.figures
    return {
        "method": variant,
        "trained_parameters": 0,
        "tokens": 0,
        "loss": _losses(figures["loss_by_position"][variant], figures["native_length"]),
        "passkey": {},
        "tokens_per_second": None,
        "peak_memory_bytes": None,
        "seconds": None,
        "settings": {},
        "commit": result.commit,
    }


def _losses(documents: Mapping[str, Mapping[str, Any]], native: int) -> dict[str, Any]:
    """Means within and past the native length over all documents, None where nothing is; and every span."""
    merged = SpanLosses.merge(SpanLosses.from_dict(each) for each in documents.values())
    beyond = merged.mean_between(native) if merged.starts[-1] >= native else None
    return {"within": merged.mean_between(0, native), "past": beyond, "spans": merged.to_dict()}


def as_csv(rows: Sequence[Row]) -> str:
    """The table for programs, every span a column."""
    starts = sorted({start for each in rows if each["loss"] for start in each["loss"]["spans"]["starts"]})
    asked = _lengths(rows)
    header = ["method", "trained_parameters", "tokens", "loss_within_native", "loss_past_native"]
    header += [f"loss_from_{start}" for start in starts]
    header += [f"passkey_{length}_{name}" for length in asked for name in ("correct", "trials")]
    cells = []
    for each in rows:
        loss = each["loss"] or {"within": None, "past": None, "spans": {"starts": [], "nll": []}}
        by_start = dict(zip(loss["spans"]["starts"], loss["spans"]["nll"], strict=True))
        keys = [each["passkey"].get(length, {}).get(name) for length in asked for name in ("correct", "trials")]
        cost = [each["tokens_per_second"], each["peak_memory_bytes"], each["seconds"]]
        facts = [each["method"], each["trained_parameters"], each["tokens"], loss["within"], loss["past"]]
        cells.append([*facts, *(by_start.get(start) for start in starts), *keys, *cost])
    return summary.as_csv([*header, "tokens_per_second", "peak_memory_bytes", "seconds"], cells)


def as_markdown(rows: Sequence[Row], whole: results.Result, tool: str) -> str:
    """The table for people, the lowest loss of each column in bold."""
    native, asked = whole.figures["native_length"], _lengths(rows)
    best = {part: _least(rows, part) for part in ("within", "past")}
    header = ["method", "trained parameters", "tokens", f"loss within {native:,}", "loss past it"]
    header += [f"passkey {int(length):,}" for length in asked] + ["tokens/s", "peak memory", "s"]
    lines = []
    for each in rows:
        cells = [each["method"], f"{each['trained_parameters']:,}", f"{each['tokens']:,}"]
        for part in ("within", "past"):
            value = each["loss"][part] if each["loss"] else None
            cells.append(f"**{value:.3f}**" if value is not None and value == best[part] else number(value, ".3f"))
        cells += [_found(each["passkey"].get(length)) for length in asked]
        cells += [number(each["tokens_per_second"], ",.0f"), gibibytes(each["peak_memory_bytes"])]
        lines.append([*cells, number(each["seconds"], ".0f")])
    return (
        "Loss by position in nats per token on the same held-out documents: lower is better; passkeys found of those "
        "asked for, the same prompts for all. Tokens/s and peak memory are of the training steps (of the process that "
        "needed most: what torch allocated on a GPU, the resident set on a CPU); s is the whole run, scoring included "
        "(for the run that scored the untouched model, that too; for a resumed run, its last part only)."
        f"\n\n{summary.as_markdown(header, lines)}\n\n{summary.provenance(whole, tool)}\n"
    )


def _lengths(rows: Sequence[Row]) -> list[str]:
    """Lengths of the passkey prompts, ascending."""
    return sorted({length for each in rows for length in each["passkey"]}, key=int)


def _least(rows: Sequence[Row], part: str) -> float | None:
    """The lowest loss of a column; what is not a number is never lowest."""
    found = [each["loss"][part] for each in rows if each["loss"] and each["loss"][part] is not None]
    return min((value for value in found if value == value), default=None)


def _found(passkey: Mapping[str, int] | None) -> str:
    return "N/A" if passkey is None else f"{passkey['correct']}/{passkey['trials']}"
