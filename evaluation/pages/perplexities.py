"""The section of perplexity by length: a chart and a table for each text and each convention of scoring."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation import perplexity_options, published
from evaluation.pages import numbers, tables
from evaluation.pages.columns import RUN, Column
from evaluation.pages.parts import Note, Part, Section
from evaluation.pages.tables import Score, Scores

CONVENTIONS = {
    "all_tokens": "every token of every window is a target",
    "new_tokens": "a window's new tokens alone are targets",
    "blocks": "disjoint blocks",
}
ERRORS = (
    "± is the standard error over documents. Models that read the same documents differ by less chance than that: "
    "their errors go together."
)
UNLIKE = "At {rows} the models were not scored on equally many tokens (n)."


@dataclass(frozen=True)
class Scoring:
    """What two perplexities must share to compare."""

    source: str
    convention: str
    stride: int | None
    options: str
    """Those that change which tokens are read and scored, as they are typed."""
    fingerprint: str

    def __str__(self) -> str:
        said = CONVENTIONS.get(self.convention)
        words = [self.source, f"{self.convention} ({said})" if said else self.convention, self.details]
        return ", ".join(filter(None, words))

    @property
    def details(self) -> str:
        """Stride and options."""
        return ", ".join(filter(None, ["" if self.stride is None else f"stride {self.stride}", self.options]))


Entry = tuple[int, Mapping[str, Any]]
"""Run, and what it stored of one length."""


def section(columns: Sequence[Column]) -> Section | None:
    """All perplexities there are."""
    parts: list[Part] = []
    for scoring, (title, entries) in entries_of(columns).items():
        scores = scores_of(columns, title, entries)
        text = published.text_of(scoring.source)
        lengths = sorted({entry["length"] for _, entry in entries})
        wanted = {numbers.length(n): published.Quantity(text, "perplexity", n) for n in lengths} if text else {}
        theirs = tables.beside(wanted, places=3, convention=scoring.convention, scoring=scoring.details)
        heading = f"Perplexity on {scoring.source}"
        parts += [scores.chart(heading, "length (tokens)", "perplexity", log=True), *scores.table(theirs)]
        parts += _known([entry for _, entry in entries])
        if len(tokenizers(columns, scores)) > 1:
            said = "The models have different tokenizers: perplexity per token does not compare."
            parts.append(Note(said, loud=True))
        right = [
            Score(run, 100 * each["accuracy"], tokens=each["length"]) for run, each in entries if "accuracy" in each
        ]
        if right:
            caption = f"Most likely token right, %: {title}"
            parts += Scores(caption, "length", right, scores.heads, places=2).table(folded=True)
    return Section("Perplexity by length", parts) if parts else None


def entries_of(columns: Sequence[Column]) -> dict[Scoring, tuple[str, list[Entry]]]:
    """Scoring -> what it is called, and all of it."""
    found: dict[Scoring, list[Entry]] = {}
    for run, column in enumerate(columns):
        for scoring, entry in _stored(column):
            found.setdefault(scoring, []).append((run, entry))
    named = {}
    for each in sorted(found, key=lambda e: (e.source, e.convention, e.stride or 0, e.options, e.fingerprint)):
        many = len({other.fingerprint for other in found if other.source == each.source}) > 1
        print_ = f", data {each.fingerprint[:8] or 'without fingerprint'}" if many else ""
        named[each] = (f"{each}{print_}", found[each])
    return named


def scores_of(columns: Sequence[Column], title: str, entries: Sequence[Entry]) -> Scores:
    """Perplexities with their standard errors: their logarithms', times themselves."""
    scores = []
    for run, each in entries:
        value, error = float(each["perplexity"]), each.get("standard_error")
        spread = value * error if error and value * error < float("inf") else None
        scores.append(Score(run, value, spread, each.get("targets"), each["length"]))
    heads = tables.heads(columns, list(dict.fromkeys(run for run, _ in entries)))
    return Scores(f"Perplexity: {title}; lowest in bold", "length", scores, heads, lowest=True, unlike=UNLIKE)


def tokenizers(columns: Sequence[Column], scores: Scores) -> set[str]:
    """Of the models that were scored."""
    found = [result.model for head in scores.heads if (result := columns[head.run or 0].result("perplexity"))]
    return {model["tokenizer"] for model in found if model and model.get("tokenizer")}


def _stored(column: Column) -> Iterator[tuple[Scoring, Mapping[str, Any]]]:
    """Of the perplexity command, and of a run that scored itself."""
    result, own = column.result("perplexity"), column.result(RUN)
    for each in result.figures["perplexity"] if result else []:
        assert result is not None
        stride = None if each["convention"] == "blocks" else each.get("stride")
        print_ = result.data.get(each["source"], "")
        yield Scoring(each["source"], each["convention"], stride, _options(result.config), print_), each
    if own is not None:
        sources = own.config.get("eval_data") or []
        prints = "".join(own.data.get(source, "") for source in sources)
        for each in (own.figures.get("perplexity") or {}).values():
            yield Scoring(f"{', '.join(sources)}, by the run itself", "blocks", None, "", prints), each


def _options(config: Mapping[str, Any]) -> str:
    """What was not left at its default."""
    flags = [f"--{name}" for name in ("bos", "first_window", "drop_last") if config.get(name)]
    values = {name: config.get(name) for name in ("join", "min_tokens", "max_tokens", "max_documents", "split")}
    defaults = (None, perplexity_options.SHORTEST, perplexity_options.SPLIT)
    return " ".join([*(f"--{name} {value}" for name, value in values.items() if value not in defaults), *flags])


def _known(entries: Sequence[Mapping[str, Any]]) -> list[Note]:
    """What standard errors are of, and what was left out."""
    notes = [Note(ERRORS)] if any(entry.get("standard_error") for entry in entries) else []
    short = {entry["length"]: left["documents"] for entry in entries if (left := entry.get("left_out"))}
    said = "; ".join(f"{count} at {numbers.length(length)}" for length, count in sorted(short.items()) if count)
    return notes + ([Note(f"Documents that were too short for a window and are left out: {said}.")] if said else [])
