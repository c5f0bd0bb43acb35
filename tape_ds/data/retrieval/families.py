"""What generated documents ask: five families of records and questions about them.

Each function of :data:`FAMILIES` draws the records of the names that are asked about, rivals (records of the same form
about names that differ in one part) and the questions. Every document has one form of records and one of questions, so
a rival is told from what is asked by its name alone. No form is one of RULER's or of our passkeys'
(``tests/data/retrieval/test_disjoint.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise

import numpy as np

from tape_ds.data.retrieval.names import draw_names, draw_values, pick


@dataclass(frozen=True)
class AskedRecord:
    ask: str
    answer: str


@dataclass(frozen=True)
class Puzzle:
    asked: tuple[tuple[str, ...], ...]
    """The records of each name that is asked about, in the order in which a document has them."""
    rivals: tuple[str, ...]
    """Records that no question is about; any number of them may be left out."""
    questions: tuple[AskedRecord, ...]


Draw = Callable[[np.random.Generator, int, int], Puzzle]
"""(random numbers, questions, rivals) -> a puzzle with as many questions, and as many rivals or a few more."""

RECORDS = (
    "{name} -> {value}",
    "{name} ; {value}",
    "| {name} | {value} |",
    'put("{name}", "{value}")',
    "Filed under {name}: {value}.",
    "The gauge {name} shows {value}.",
)
LOOKUPS = (
    "What is filed under {name}?",
    "Which value belongs to {name}?",
    "get({name})",
    "Shown for {name}:",
)
LISTINGS = (
    "Everything filed under {name}, first to last?",
    "All that {name} had, in its order:",
    "get_all({name})",
)
LINKS = (
    ("{name} stands for {other}", "{name} holds {value}"),
    ("{name} <- {other}", "{name} <- [{value}]"),
    ("For {name} see {other}.", "For {name} take {value}."),
    ("link({name}, {other})", "link({name}, '{value}')"),
)
ENDINGS = (
    "Where does {name} lead in the end?",
    "resolve({name})",
    "What is {name}, all links followed?",
)
SIGHTINGS = (
    "{name} came by at {value}",
    "+ {name} ({value})",
    "Seen: {name}, near {value}.",
    "log({value}, {name})",
)
COUNTS = (
    "How often did {name} turn up?",
    "count({name})",
    "Number of lines with {name}:",
)
LISTS = (
    ("{name} = [{items}]", ", "),
    ("Crate {name} holds {items}.", " + "),
    ("{name} | {items}", " | "),
)
ITEMS = {
    "after": ("Which one comes right after {item} in {name}?", "next({name}, {item})"),
    "last": ("Which one ends {name}?", "last({name})"),
    "first": ("Which one begins {name}?", "first({name})"),
}

MOST_VALUES = 4
MOST_LINKS = 3
MOST_SIGHTINGS = 6
LIST_ITEMS = (4, 7)
POOL = 12
"""Different items that the lists of a document are made of, so that rivals have the same ones."""


def look_up(rng: np.random.Generator, questions: int, rivals: int) -> Puzzle:
    """A value by its name."""
    names = draw_names(rng, questions, rivals)
    values = draw_values(rng, len(names))
    form = pick(rng, RECORDS)
    ask = pick(rng, LOOKUPS)
    groups = []
    asked = []
    for name, value in zip(names, values, strict=True):
        groups.append((form.format(name=name, value=value),))
        asked.append(AskedRecord(ask.format(name=name), value))
    return _puzzle(groups, asked, questions)


def list_values(rng: np.random.Generator, questions: int, rivals: int) -> Puzzle:
    """Several values of one name, each in its own record."""
    counts = _record_counts(rng, questions, rivals, 2, MOST_VALUES)
    names = draw_names(rng, questions, len(counts) - questions)
    form = pick(rng, RECORDS)
    ask = pick(rng, LISTINGS)
    values = iter(draw_values(rng, sum(counts)))
    groups = []
    asked = []
    for name, count in zip(names, counts, strict=True):
        of_name = list(islice(values, count))
        groups.append(tuple(form.format(name=name, value=value) for value in of_name))
        asked.append(AskedRecord(ask.format(name=name), ", ".join(of_name)))
    return _puzzle(groups, asked, questions)


def follow_chain(rng: np.random.Generator, questions: int, rivals: int) -> Puzzle:
    """The value at the end of a chain of names; its records are in any order."""
    links = int(rng.integers(1, MOST_LINKS, endpoint=True))
    # a chain that is not asked about has one record more than links
    chains = questions + -(-rivals // (links + 1))
    names = draw_names(rng, questions, chains * (links + 1) - questions)
    begins = names[:chains]
    others = iter(names[chains:])
    values = draw_values(rng, chains)
    link, end = LINKS[int(rng.integers(len(LINKS)))]
    ask = pick(rng, ENDINGS)
    groups = []
    asked = []
    for begin, value in zip(begins, values, strict=True):
        linked = [begin, *islice(others, links)]
        records = [link.format(name=name, other=other) for name, other in pairwise(linked)]
        records.append(end.format(name=linked[-1], value=value))
        groups.append(tuple(records[place] for place in rng.permutation(len(records))))
        asked.append(AskedRecord(ask.format(name=begin), value))
    return _puzzle(groups, asked, questions)


def count_records(rng: np.random.Generator, questions: int, rivals: int) -> Puzzle:
    """How many records a name has."""
    counts = _record_counts(rng, questions, rivals, 1, MOST_SIGHTINGS)
    names = draw_names(rng, questions, len(counts) - questions)
    form = pick(rng, SIGHTINGS)
    ask = pick(rng, COUNTS)
    values = iter(draw_values(rng, sum(counts)))
    groups = []
    asked = []
    for name, count in zip(names, counts, strict=True):
        of_name = islice(values, count)
        groups.append(tuple(form.format(name=name, value=value) for value in of_name))
        asked.append(AskedRecord(ask.format(name=name), str(count)))
    return _puzzle(groups, asked, questions)


def extract_item(rng: np.random.Generator, questions: int, rivals: int) -> Puzzle:
    """An item of a list, among lists of the same items."""
    names = draw_names(rng, questions, rivals)
    pool = draw_values(rng, POOL)
    form, joint = LISTS[int(rng.integers(len(LISTS)))]
    wanted = pick(rng, list(ITEMS))
    ask = pick(rng, ITEMS[wanted])
    groups = []
    asked = []
    for name in names:
        size = int(rng.integers(*LIST_ITEMS, endpoint=True))
        items = [pool[place] for place in rng.permutation(POOL)[:size]]
        groups.append((form.format(name=name, items=joint.join(items)),))
        # not the last: nothing comes after it
        before = int(rng.integers(size - 1))
        answer = {"after": items[before + 1], "last": items[-1], "first": items[0]}[wanted]
        asked.append(AskedRecord(ask.format(name=name, item=items[before]), answer))
    return _puzzle(groups, asked, questions)


def _record_counts(
    rng: np.random.Generator, questions: int, rivals: int, least: int, most: int
) -> list[int]:
    """Return how many records each name has: of those that are asked about, and of as many more as give the rivals."""
    counts = rng.integers(least, most, questions + rivals, endpoint=True)
    before = np.cumsum(counts[questions:]) - counts[questions:]
    others = int((before < rivals).sum())
    return counts[: questions + others].tolist()


def _puzzle(
    groups: Sequence[tuple[str, ...]], asked: Sequence[AskedRecord], questions: int
) -> Puzzle:
    """Return the puzzle that asks about the first groups; the records of all others are rivals."""
    rivals = tuple(chain.from_iterable(groups[questions:]))
    return Puzzle(tuple(groups[:questions]), rivals, tuple(asked[:questions]))


FAMILIES: Mapping[str, Draw] = {
    "lookup": look_up,
    "values": list_values,
    "chain": follow_chain,
    "count": count_records,
    "list": extract_item,
}
