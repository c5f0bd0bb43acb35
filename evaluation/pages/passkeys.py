"""The section of passkeys: a heat map of depth and length for each run, and the share found by length."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation import published
from evaluation.pages import beside, numbers
from evaluation.pages.columns import RUN, Column
from evaluation.pages.parts import Cell, Grid, Head, Note, Part, Section, Table, Text
from tape_ds.results import passkeys_of

Counts = tuple[int, int]
"""Correct, trials."""
Cells = dict[tuple[int, float | None], Counts]
"""(length, depth) -> counts; depth None: keys lie anywhere."""
PUBLISHED = "published"
"""The protocol that asks Figure 3's own prompts."""
PUBLISHED_FORM = "longlora"
ASKERS = {
    "grid": "asked by the passkey command",
    PUBLISHED: "the published prompts, asked by the passkey command",
    RUN: "asked by the training runs themselves",
}


def section(columns: Sequence[Column]) -> Section | None:
    """A part for each form of prompt, those that training runs asked themselves apart."""
    groups: dict[tuple[str, str], dict[int, Cells]] = {}
    for run, column in enumerate(columns):
        for form, asker, cells in _asked(column):
            groups.setdefault((asker, form), {})[run] = cells
    parts: list[Part] = []
    for (asker, form), found in sorted(groups.items()):
        parts.append(Text(f"Prompts of the form {form}, {ASKERS.get(asker, asker)}."))
        if asker != RUN:
            parts += _heat_maps(columns, found)
        parts += _by_length(columns, f"form {form}", found, _published_lengths(form, asker))
    return Section("Passkeys found", parts) if parts else None


def _asked(column: Column) -> Iterator[tuple[str, str, Cells]]:
    """Form, who asked, and the counts."""
    result = column.result("passkey")
    if result is not None and result.figures["cells"]:
        asker = str(result.config.get("protocol", "grid"))
        yield str(result.figures.get("form")), asker, _summed(result.figures["cells"])
    own = column.result(RUN)
    passkeys = own.figures.get("passkey") if own else None
    if own is not None and passkeys:
        yield (
            str(own.config.get("passkey_form")),
            RUN,
            _summed([{**each, "depth": None} for each in passkeys_of(passkeys)]),
        )


def _summed(entries: Sequence[Mapping[str, Any]]) -> Cells:
    cells: Cells = {}
    for each in entries:
        key = int(each["length"]), each["depth"]
        correct, trials = cells.get(key, (0, 0))
        cells[key] = correct + int(each["correct"]), trials + int(each["trials"])
    return cells


def _published_lengths(form: str, asker: str) -> dict[int, int]:
    """Length as a row is called -> length as Figure 3 calls it, where its prompts are of the same form."""
    if form != PUBLISHED_FORM or asker == RUN:
        return {}
    return {called if asker == PUBLISHED else tokens: called for called, tokens in published.PASSKEY_TOKENS.items()}


def _heat_maps(columns: Sequence[Column], found: Mapping[int, Cells]) -> list[Part]:
    """One for each run, all over the same lengths and depths; none where keys lie anywhere."""
    depths = sorted({depth for cells in found.values() for _, depth in cells if depth is not None})
    lengths = sorted({length for cells in found.values() for length, _ in cells})
    if not depths:
        return []
    maps = [_heat_map(columns[run].name, run, cells, lengths, depths) for run, cells in found.items()]
    return [Text("Each row is a depth, each column a length; a cell says how many of how many were found."), Grid(maps)]


def _heat_map(name: str, run: int, cells: Cells, lengths: Sequence[int], depths: Sequence[float]) -> Table:
    rows = []
    for depth in depths:
        row = []
        for length in lengths:
            correct, trials = cells.get((length, depth), (0, 0))
            row.append(Cell(f"{correct}/{trials}", share=correct / trials) if trials else Cell())
        rows.append((f"{100 * depth:.0f} %", row))
    heads = [Head("depth", run), *(Head(numbers.length(length)) for length in lengths)]
    return Table(name, heads, rows, dense=True)


def _by_length(
    columns: Sequence[Column], words: str, found: Mapping[int, Cells], theirs: Mapping[int, int]
) -> list[Part]:
    """The share found over all depths; published numbers beside it, at the lengths ``theirs``."""
    totals = {run: _totals(cells) for run, cells in found.items()}
    own = {length for each in totals.values() for length in each}
    lengths = sorted(own | {length for length in theirs if length <= max(own)})
    others = beside.find(
        [published.Quantity("passkey", "accuracy", theirs.get(length, 0)) for length in lengths], places=0
    )
    rows = []
    for length, beside_it in zip(lengths, others.cells, strict=True):
        cells = [numbers.found(*each.get(length, (0, 0))) for each in totals.values()]
        rows.append((numbers.length(length), [*cells, *beside_it]))
    heads = [Head("length"), *(Head(columns[run].name, run) for run in found), *others.heads]
    parts: list[Part] = [Table(f"Passkeys found, %, all depths together, {words}", heads, rows)]
    unlike = [n for n in sorted(own) if len({each[n][1] for each in totals.values() if n in each}) > 1]
    if unlike:
        where = ", ".join(map(numbers.length, unlike))
        parts.append(
            Note(f"At {where} the models were not asked equally often: compare counts, not shares.", loud=True)
        )
    if others.heads and not own & set(theirs):
        parts.append(Note("Published lengths are others than the runs', so they have rows of their own."))
    return [*parts, *others.notes]


def _totals(cells: Cells) -> dict[int, Counts]:
    totals: dict[int, Counts] = {}
    for (length, _), (correct, trials) in cells.items():
        before = totals.get(length, (0, 0))
        totals[length] = before[0] + correct, before[1] + trials
    return totals
