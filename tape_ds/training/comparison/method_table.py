"""The table of extension methods: what each was trained on, its loss within and past the native length, its cost."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from tape_ds import results
from tape_ds.results import passkeys_of
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.training.comparison import summary
from tape_ds.training.comparison.measures import Column, Measure, Row
from tape_ds.training.comparison.runs import Planned
from tape_ds.training.numbers import NOT_AVAILABLE, gibibytes, number

LEAD = (
    "Loss by position in nats per token on the same held-out documents: lower is better; passkeys found of those asked "
    "for, the same prompts for all. Tokens/s and peak memory are of the training steps (of the process that needed "
    "most: what torch allocated on a GPU, the resident set on a CPU); s is the whole run, scoring included (for the "
    "run that scored the untouched model, that too; for a resumed run, its last part only)."
)


def row(run: Planned, result: results.Result, differing: Sequence[str]) -> dict[str, Any]:
    """What one run came to; of its configuration the ``differing`` fields."""
    figures = result.figures
    scores = figures["loss_by_position"]
    own = next(reversed(scores), None)  # a run scores what it made last
    return summary.row("method", run, result) | {
        "trained_parameters": figures["parameters"]["trained"],
        "tokens": figures["tokens"],
        "loss": _losses(scores[own], figures["native_length"]) if own else None,
        "passkey": _counts(passkeys_of(figures["passkey"])),
        "tokens_per_second": figures["tokens_per_second"],
        "peak_memory_bytes": figures["peak_memory_bytes"],
        "settings": {name: result.config[name] for name in differing if name in result.config},
    }


def row_untouched(variant: str, result: results.Result) -> dict[str, Any]:
    """The model before anything was done to it, as a run scored it under the name ``variant``; it has no seed."""
    figures = result.figures
    return {
        "method": variant,
        "seed": None,
        "again": False,
        "trained_parameters": 0,
        "tokens": 0,
        "loss": _losses(figures["loss_by_position"][variant], figures["native_length"]),
        "passkey": _counts(passkeys_of(figures["passkey"], variant)),
        "tokens_per_second": None,
        "peak_memory_bytes": None,
        "seconds": None,
        "settings": {},
        "commit": result.commit,
    }


def _counts(passkeys: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was found of what was asked, by length."""
    return {str(each["length"]): {name: each[name] for name in ("correct", "trials")} for each in passkeys}


def _losses(documents: Mapping[str, Mapping[str, Any]], native: int) -> dict[str, Any]:
    """Means within and past the native length over all documents, None where nothing is; and every span."""
    merged = SpanLosses.merge(SpanLosses.from_dict(each) for each in documents.values())
    beyond = merged.mean_between(native) if merged.starts[-1] >= native else None
    return {"within": merged.mean_between(0, native), "past": beyond, "spans": merged.to_dict()}


def as_csv(rows: Sequence[Row]) -> str:
    """The table for programs, every span a column."""
    starts = sorted({start for each in rows if each["loss"] for start in each["loss"]["spans"]["starts"]})
    asked = _lengths(rows)
    header = ["method", "seed", "again", "trained_parameters", "tokens", "loss_within_native", "loss_past_native"]
    header += [f"loss_from_{start}" for start in starts]
    header += [f"passkey_{length}_{name}" for length in asked for name in ("correct", "trials")]
    cells = []
    for each in rows:
        loss = each["loss"] or {"within": None, "past": None, "spans": {"starts": [], "nll": []}}
        by_start = dict(zip(loss["spans"]["starts"], loss["spans"]["nll"], strict=True))
        keys = [each["passkey"].get(length, {}).get(name) for length in asked for name in ("correct", "trials")]
        cost = [each["tokens_per_second"], each["peak_memory_bytes"], each["seconds"]]
        facts = [
            each["method"],
            each["seed"],
            each["again"],
            each["trained_parameters"],
            each["tokens"],
            loss["within"],
            loss["past"],
        ]
        cells.append([*facts, *(by_start.get(start) for start in starts), *keys, *cost])
    return summary.as_csv([*header, "tokens_per_second", "peak_memory_bytes", "seconds"], cells)


def measures(passkey_lengths: Sequence[int]) -> list[Measure]:
    """What a run is measured by; where nobody says, the loss past the native length decides."""
    passkeys = [
        Measure(
            f"passkey_{length}", f"passkeys found at {length:,} tokens", passkey(length), lower=False, is_share=True
        )
        for length in sorted(passkey_lengths)
    ]
    return [_loss("past", "loss past the native length"), _loss("within", "loss within the native length"), *passkeys]


def _loss(part: str, title: str, header: str = "") -> Measure:
    return Measure(
        f"loss_{part}_native", title, lambda row: row["loss"][part] if row["loss"] else None, header, digits=3
    )


def passkey(length: int) -> Callable[[Row], float | None]:
    """Reads the share of passkeys of a length that were found."""

    def share(row: Row) -> float | None:
        found = row["passkey"].get(str(length))
        return None if found is None else found["correct"] / found["trials"]

    return share


def columns(native: int, passkey_lengths: Sequence[int]) -> list[Column | Measure]:
    """Those of the table for people; passkeys, speed and cost are of all runs of a method."""
    return [
        Column("trained parameters", lambda rows: f"{rows[0]['trained_parameters']:,}"),
        Column("tokens", lambda rows: f"{rows[0]['tokens']:,}"),
        _loss("within", "", f"loss within {native:,}"),
        _loss("past", "", "loss past it"),
        *(Column(f"passkey {length:,}", _found(str(length))) for length in sorted(passkey_lengths)),
        Column("tokens/s", lambda rows: number(_mean(rows, "tokens_per_second"), ",.0f")),
        Column("peak memory", lambda rows: gibibytes(_mean(rows, "peak_memory_bytes"))),
        Column("s", lambda rows: number(_mean(rows, "seconds"), ".0f")),
    ]


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return fmean(values) if values else None


def _found(length: str) -> Callable[[Sequence[Row]], str]:
    def cell(rows: Sequence[Row]) -> str:
        asked = [row["passkey"][length] for row in rows if length in row["passkey"]]
        if not asked:
            return NOT_AVAILABLE
        return f"{sum(each['correct'] for each in asked)}/{sum(each['trials'] for each in asked)}"

    return cell


def _lengths(rows: Sequence[Row]) -> list[str]:
    """Lengths of the passkey prompts, ascending."""
    return sorted({length for each in rows for length in each["passkey"]}, key=int)
