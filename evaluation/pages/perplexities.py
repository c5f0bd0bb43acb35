"""The section of perplexity by length: a chart and a table for each text and each convention of scoring."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluation import perplexity_options, published
from evaluation.pages import beside, numbers
from evaluation.pages.columns import RUN, Column
from evaluation.pages.parts import Cell, Chart, Folded, Grid, Head, Line, Note, Part, Section, Table

CONVENTIONS = {
    "all_tokens": "every token of every window is a target",
    "new_tokens": "a window's new tokens alone are targets",
    "blocks": "disjoint blocks",
}


@dataclass(frozen=True, order=True)
class Scoring:
    """What two perplexities must share to compare."""

    source: str
    fingerprint: str
    convention: str
    stride: int | None
    options: str = ""
    """Those that change which tokens are read and scored, as they are typed."""

    def __str__(self) -> str:
        said = CONVENTIONS.get(self.convention)
        words = [f"{self.convention} ({said})" if said else self.convention]
        return ", ".join([self.source, *words, *([self.details] if self.details else [])])

    @property
    def details(self) -> str:
        """Stride and options."""
        words = [] if self.stride is None else [f"stride {self.stride}"]
        return ", ".join(words + ([self.options] if self.options else []))


ERRORS = (
    "± is the standard error over documents. Models that read the same documents differ by less chance than that: "
    "their errors go together."
)

Entry = Mapping[str, Any]
Scores = dict[Scoring, dict[int, dict[int, Entry]]]
"""Scoring -> run -> length -> entry."""


def section(columns: Sequence[Column]) -> Section | None:
    """All perplexities there are."""
    scores: Scores = {}
    for run, column in enumerate(columns):
        for scoring, entry in _entries(column):
            scores.setdefault(scoring, {}).setdefault(run, {})[entry["length"]] = entry
    parts: list[Part] = []
    addresses = [scoring.source for scoring in scores]
    for scoring in sorted(scores, key=lambda e: (e.source, e.convention, e.stride or 0, e.options, e.fingerprint)):
        many = len({each.fingerprint for each in scores if each.source == scoring.source}) > 1
        parts += _part(columns, scoring, scores[scoring], addresses.count(scoring.source) > 1 and many)
    return Section("Perplexity by length", parts) if parts else None


def _entries(column: Column) -> Iterator[tuple[Scoring, Entry]]:
    """Of the perplexity command, and of a run that scored itself."""
    result = column.result("perplexity")
    for each in result.figures["perplexity"] if result else []:
        assert result is not None
        stride = None if each["convention"] == "blocks" else each.get("stride")
        fingerprint = result.data.get(each["source"], "")
        yield Scoring(each["source"], fingerprint, each["convention"], stride, _options(result.config)), each
    own = column.result(RUN)
    if own is not None:
        sources = own.config.get("eval_data") or []
        prints = "".join(own.data.get(source, "") for source in sources)
        for each in (own.figures.get("perplexity") or {}).values():
            yield Scoring(f"{', '.join(sources)}, by the run itself", prints, "blocks", None), each


def _options(config: Mapping[str, Any]) -> str:
    """What was not left at its default."""
    flags = [f"--{name}" for name in ("bos", "first_window", "drop_last") if config.get(name)]
    values = {name: config.get(name) for name in ("join", "min_tokens", "max_tokens", "max_documents", "split")}
    defaults = (None, perplexity_options.SHORTEST, perplexity_options.SPLIT)
    return " ".join([*(f"--{name} {value}" for name, value in values.items() if value not in defaults), *flags])


def _part(
    columns: Sequence[Column], scoring: Scoring, found: Mapping[int, Mapping[int, Entry]], many: bool
) -> list[Part]:
    """One scoring's notes, chart and table."""
    title = f"{scoring}, data {scoring.fingerprint[:8] or 'without fingerprint'}" if many else str(scoring)
    lengths = sorted({length for entries in found.values() for length in entries})
    text = published.text_of(scoring.source)
    wanted = [published.Quantity(text, "perplexity", length) for length in lengths] if text else []
    others = beside.find(wanted, places=3, convention=scoring.convention, scoring=scoring.details)
    lines = [
        Line(columns[run].name, [(float(n), float(entries[n]["perplexity"])) for n in sorted(entries)], run)
        for run, entries in found.items()
    ]
    shown = [y for line in lines for _, y in line.points if math.isfinite(y) and y > 0]
    names = ", ".join(line.label for line in lines)
    alt = f"Perplexity against length on {title}, for {names}; the table below has the numbers."
    log = bool(shown) and max(shown) > 4 * min(shown)
    chart = Chart(
        f"Perplexity on {scoring.source}",
        "length (tokens)",
        "perplexity",
        lines,
        alt,
        x_tokens=True,
        x_log=True,
        y_log=log,
    )
    rows = []
    for at, length in enumerate(lengths):
        cells = _row([entries.get(length) for entries in found.values()])
        rows.append((numbers.length(length), [*cells, *(others.cells[at] if text else [])]))
    heads = [Head("length"), *(Head(columns[run].name, run) for run in found), *others.heads]
    notes = [*_unlike(columns, found, lengths), *others.notes]
    table = Table(f"Perplexity: {title}; lowest in bold", heads, rows)
    return [Grid([chart, table]), *notes, *_accuracies(columns, title, found, lengths)]


def _accuracies(
    columns: Sequence[Column], title: str, found: Mapping[int, Mapping[int, Entry]], lengths: Sequence[int]
) -> list[Part]:
    """A table on request; nothing where no accuracy is stored."""
    if not any("accuracy" in entry for entries in found.values() for entry in entries.values()):
        return []
    rows = [
        (
            numbers.length(length),
            [
                numbers.measured(entries.get(length, {}).get("accuracy"), None, 2, scale=100)
                for entries in found.values()
            ],
        )
        for length in lengths
    ]
    heads = [Head("length"), *(Head(columns[run].name, run) for run in found)]
    return [Folded("Accuracy of the next token", [Table(f"Most likely token right, %: {title}", heads, rows)])]


def _row(entries: Sequence[Entry | None]) -> list[Cell]:
    """A length's perplexities; where models were not scored on equally many tokens, how many."""
    values = [None if entry is None else float(entry["perplexity"]) for entry in entries]
    lowest = numbers.best(values, lowest=True)
    unlike = len({entry.get("targets") for entry in entries if entry is not None}) > 1
    cells = []
    for entry, value in zip(entries, values, strict=True):
        cell = replace(_cell(entry), best=lowest is not None and value == lowest)
        if entry is not None and unlike:
            cell = replace(cell, detail=f"{cell.detail} n = {entry.get('targets', 0):,}".strip())
        cells.append(cell)
    return cells


def _cell(entry: Entry | None) -> Cell:
    """A perplexity; its standard error is its nll's, times itself."""
    if entry is None:
        return Cell()
    value, error = float(entry["perplexity"]), entry.get("standard_error")
    if not error or not math.isfinite(value * error):
        return Cell(numbers.significant(value))
    return numbers.measured(value, value * error, 3)


def _unlike(columns: Sequence[Column], found: Mapping[int, Mapping[int, Entry]], lengths: Sequence[int]) -> list[Note]:
    """Rows in which numbers of targets differ, and models whose tokens are others."""
    notes = []
    entries_of_all = [entry for entries in found.values() for entry in entries.values()]
    if any(entry.get("standard_error") for entry in entries_of_all):
        notes.append(Note(ERRORS))
    short = {entry["length"]: left["documents"] for entry in entries_of_all if (left := entry.get("left_out"))}
    if any(short.values()):
        said = "; ".join(f"{count} at {numbers.length(length)}" for length, count in sorted(short.items()) if count)
        notes.append(Note(f"Documents that were too short for a window and are left out: {said}."))
    at = [n for n in lengths if len({entries[n].get("targets") for entries in found.values() if n in entries}) > 1]
    if at:
        where = ", ".join(map(numbers.length, at))
        notes.append(Note(f"At {where} the models were not scored on equally many tokens (n).", loud=True))
    tokenizers = set()
    for run in found:
        result = columns[run].result("perplexity")
        if result is not None and result.model and result.model.get("tokenizer"):
            tokenizers.add(result.model["tokenizer"])
    if len(tokenizers) > 1:
        notes.append(Note("The models have different tokenizers: perplexity per token does not compare.", loud=True))
    return notes
