"""The section of perplexity by length: a chart and a table for each text and each convention of scoring."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from evaluation import perplexity_options
from evaluation.pages import numbers
from evaluation.pages.columns import RUN, Column, names, of
from evaluation.pages.parts import Note, PageSection, Part
from evaluation.pages.tables import Score, Scores

CONVENTIONS = {
    "all_tokens": "all_tokens (every token of every window is a target)",
    "new_tokens": "new_tokens (a window's new tokens alone are targets)",
    "blocks": "blocks (disjoint blocks)",
}
ERRORS = (
    "± is the standard error over documents. Models that read the same documents differ by less chance than that: "
    "their errors go together."
)
OPTIONS = ("join", "min_tokens", "max_tokens", "max_documents", "split", "bos", "first_window", "drop_last")
"""Of the command, which change what is read and scored."""
DEFAULTS = (("min_tokens", perplexity_options.SHORTEST), ("split", perplexity_options.SPLIT))
UNLIKE = "At {rows} the models were not scored on equally many tokens (n)."


class ScoredAs(NamedTuple):
    """What two perplexities must share to compare."""

    source: str
    convention: str
    details: str
    """Stride and options that change which tokens are read and scored, as they are typed."""
    fingerprint: str
    """Of the data, its beginning."""

    def __str__(self) -> str:
        data = f"data {self.fingerprint}" if self.fingerprint else ""
        return ", ".join(filter(None, [self.source, CONVENTIONS.get(self.convention, ""), self.details, data]))


Entry = tuple[int, Mapping[str, Any]]
"""Run, and what it stored of one length."""


def section(columns: Sequence[Column]) -> PageSection | None:
    """Return all perplexities there are."""
    parts: list[Part] = []
    for scoring, entries in entries_of(columns).items():
        scores = scores_of(columns, scoring, entries)
        parts.append(scores.chart(f"Perplexity on {scoring.source}", "length (tokens)", "perplexity", log=True))
        parts += scores.table()
        if any(each.get("standard_error") for _, each in entries):
            parts.append(Note(ERRORS))
        short = {each["length"]: left["documents"] for _, each in entries if (left := each.get("left_out"))}
        if any(short.values()):
            left_out = "; ".join(f"{count} at {numbers.length(n)}" for n, count in sorted(short.items()) if count)
            parts.append(Note(f"Documents that were too short for a window and are left out: {left_out}."))
        if not same_tokenizer(columns, entries):
            warning = "The models have different tokenizers: perplexity per token does not compare."
            parts.append(Note(warning, loud=True))
        right = [Score(run, 100 * e["accuracy"], tokens=e["length"]) for run, e in entries if "accuracy" in e]
        if right:
            caption = f"Most likely token right, %: {scoring}"
            parts += Scores(caption, "length", right, names(columns), places=2).table(folded=True)
    return PageSection("Perplexity by length", parts) if parts else None


def entries_of(columns: Sequence[Column]) -> dict[ScoredAs, list[Entry]]:
    """Return everything that is stored, by what has to be the same."""
    found: dict[ScoredAs, list[Entry]] = {}
    for run, column in enumerate(columns):
        for scoring, entry in _stored(column):
            found.setdefault(scoring, []).append((run, entry))
    return dict(sorted(found.items()))


def scores_of(columns: Sequence[Column], scoring: ScoredAs, entries: Sequence[Entry]) -> Scores:
    """Perplexities with their standard errors: their logarithms', times themselves."""
    scores = []
    for run, each in entries:
        value, error = float(each["perplexity"]), each.get("standard_error")
        spread = value * error if error and value * error < float("inf") else None
        scores.append(Score(run, value, spread, each.get("targets"), each["length"]))
    return Scores(
        f"Perplexity: {scoring}; lowest in bold", "length", scores, names(columns), lowest=True, unlike=UNLIKE
    )


def same_tokenizer(columns: Sequence[Column], entries: Sequence[Entry]) -> bool:
    """Return whether perplexities per token compare, as far as is known."""
    runs = {run for run, _ in entries}
    models = [result.model or {} for run, result in of(columns, "perplexity").items() if run in runs]
    return len({model["tokenizer"] for model in models if model.get("tokenizer")}) < 2


def _stored(column: Column) -> Iterator[tuple[ScoredAs, Mapping[str, Any]]]:
    """Of the perplexity command, and of a run that scored itself."""
    for result in of([column], "perplexity").values():
        config = result.config
        values = {name: config.get(name) for name in OPTIONS}
        options = [
            f"--{name}" if value is True else f"--{name} {numbers.length(value) if '_tokens' in name else value}"
            for name, value in values.items()
            if value not in (None, False) and (name, value) not in DEFAULTS
        ]
        for each in result.figures["perplexity"]:
            stride = None if each["convention"] == "blocks" else each.get("stride")
            details = ", ".join(filter(None, [f"stride {numbers.length(stride)}" if stride else "", " ".join(options)]))
            yield ScoredAs(each["source"], each["convention"], details, result.data.get(each["source"], "")[:8]), each
    for own in of([column], RUN).values():
        sources = own.config.get("eval_data") or []
        prints = "".join(own.data.get(source, "")[:8] for source in sources)
        for each in (own.figures.get("perplexity") or {}).values():
            yield ScoredAs(f"{', '.join(sources)}, by the run itself", "blocks", "", prints), each
