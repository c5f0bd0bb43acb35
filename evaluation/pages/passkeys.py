"""The section of passkeys: a heat map of depth and length for each run, and the share found by length."""

from collections.abc import Iterator, Sequence

import pandas as pd

from evaluation.pages import numbers
from evaluation.pages.columns import RUN, Column, names, of
from evaluation.pages.numbers import MISSING
from evaluation.pages.parts import Head, Note, PageSection, PageTable, Part
from evaluation.pages.tables import Score, Scores
from tape_ds.results import passkeys_of

ASKERS = {
    "grid": "asked by the passkey command",
    "published": "the published prompts, asked by the passkey command",
    RUN: "asked by the training runs themselves",
}
"""Who asked; ``published`` asks Figure 3's own prompts."""
UNLIKE = "At {rows} the models were not asked equally often: compare counts, not shares."


def section(columns: Sequence[Column]) -> PageSection | None:
    """Return a part for each form of prompt, those that training runs asked themselves apart."""
    groups: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for asker, form, cells in _asked(columns):
        groups.setdefault((asker, form), []).append(cells)
    parts: list[Part] = []
    for (asker, form), frames in sorted(groups.items(), key=lambda item: item[0]):
        found = pd.concat(frames)
        found = found[found["trials"] > 0]
        parts.append(Note(f"Prompts of the form {form}, {ASKERS.get(asker, asker)}."))
        if asker != RUN and found["depth"].notna().any():
            parts.append(Note("A row is a depth, a column a length; a cell says how many of how many were found."))
            parts += _heat_maps(columns, found)
        parts += _by_length(columns, form, found)
    return PageSection("Passkeys found", parts) if parts else None


def _asked(columns: Sequence[Column]) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Who asked, the form, and the counts: length, depth (missing: keys lie anywhere), correct, trials, run."""
    fields = ["length", "depth", "correct", "trials"]
    for run, result in of(columns, "passkey").items():
        if cells := result.figures["cells"]:
            asker = str(result.config.get("protocol", "grid"))
            yield asker, str(result.figures.get("form")), pd.DataFrame(cells, columns=fields).assign(run=run)
    for run, result in of(columns, RUN).items():
        if cells := result.figures.get("passkey"):
            form = str(result.config.get("passkey_form"))
            yield RUN, form, pd.DataFrame(passkeys_of(cells), columns=fields).assign(run=run)


def _heat_maps(columns: Sequence[Column], found: pd.DataFrame) -> list[PageTable]:
    """Return one for each run, all over the same lengths and depths."""
    sums = found.groupby(["run", "depth", "length"])[["correct", "trials"]].sum().astype(str)
    counts = sums["correct"] + "/" + sums["trials"]
    wide = counts.unstack("length").reindex(columns=sorted(found["length"].unique()))
    heads = [Head("depth"), *(Head(numbers.length(int(length))) for length in wide)]
    maps = []
    for run in found["run"].unique():
        own = wide.xs(run).reindex(sorted(found["depth"].dropna().unique())).fillna(MISSING)
        rows = [(f"{100 * depth:.0f} %", list(row)) for depth, row in own.iterrows()]
        maps.append(PageTable(columns[run].name, heads, rows, run=int(run)))
    return maps


def _by_length(columns: Sequence[Column], form: str, found: pd.DataFrame) -> list[PageTable | Note]:
    """Return the share found over all depths."""
    sums = found.groupby(["run", "length"], sort=False)[["correct", "trials"]].sum().astype(int)
    scores = []
    for run, length, correct, trials in sums.reset_index().itertuples(index=False):
        count = f"{correct}/{trials}"
        scores.append(Score(run, 100 * correct / trials, samples=trials, tokens=length, detail=count))
    title = f"Passkeys found, %, all depths together, form {form}"
    return Scores(title, "length", scores, names(columns), places=0, unlike=UNLIKE).table()
