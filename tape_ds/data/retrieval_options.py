"""The options of ``generated:retrieval``, as a data spec has them behind ``#``.

No torch and no tokenizer here: a recipe is checked with this alone.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tape_ds import numbers
from tape_ds.errors import did_you_mean

FAMILY_NAMES = ("lookup", "values", "chain", "count", "list")
TEXT = "text"
"""The last option: everything behind it is a data spec of its own, which may have ``#`` and ``&``."""
_TEXT = re.compile(rf"(?:^|&){TEXT}=")
_LARGEST = 100_000
"""Rivals, questions and conversations at most: a mistyped number should not fill the memory."""

Wrong = tuple[str, str]
"""What is wrong, and the remedy."""


@dataclass(frozen=True)
class RetrievalOptions:
    families: tuple[tuple[str, float], ...] = tuple((name, 1.0) for name in FAMILY_NAMES)
    """Shares of the documents; only their proportions matter."""
    tokens: tuple[int, int] | None = None
    """The fewest and the most tokens of a document; None: as many as a sequence has."""
    rivals: tuple[int, int] = (20, 20)
    """Records of the same form that no question is about. Without a text they fill the document instead."""
    questions: tuple[int, int] = (1, 4)
    place: tuple[float, float] = (0.0, 1.0)
    """The part of the document, as shares of its text, that has what is asked for."""
    targets: str = "answers"
    """``answers`` or ``all`` tokens."""
    documents: int | None = None
    """Conversations to make, for a launcher that reads each once an epoch."""
    text: str | None = None
    """The data spec of the text that records are put into; None: there are records alone."""

    def shares(self) -> list[float]:
        """Return the probability of each family."""
        whole = math.fsum(share for _, share in self.families)
        return [share / whole for _, share in self.families]


def read(given: str) -> tuple[RetrievalOptions, list[Wrong]]:
    """Return the options of ``tokens=1k-4k&rivals=40&text=SPEC``, and everything that is wrong with them."""
    values: dict[str, Any] = {}
    mistakes: list[Wrong] = []
    match = _TEXT.search(given)
    plain = given
    if match is not None:
        plain = given[: match.start()]
        values[TEXT] = given[match.end() :]
        if not values[TEXT]:
            mistakes.append(
                (
                    "text= names no data",
                    "write the data spec of the text, such as text=stdlib, or remove it",
                )
            )
    for part in plain.split("&") if plain else []:
        name, equals, value = part.partition("=")
        if name not in _READERS:
            remedy = did_you_mean(name, [*_READERS, TEXT])
            remedy += "; options are NAME=VALUE, joined by &, and text= is the last"
            mistakes.append((f"{part!r} is no option of it", remedy))
        elif name in values:
            mistakes.append((f"{name} is given more than once", f"give one {name}="))
        else:
            reader, form = _READERS[name]
            value_read = reader(value) if equals else None
            if value_read is None:
                mistakes.append((f"{part!r} cannot be read", f"write {form}"))
            values[name] = value_read
    if TEXT not in values and "rivals" in values:
        remedy = "add text=SPEC (the text that records are put into), or remove rivals: rivals alone fill a document"
        mistakes.append(("rivals are counted, and there is no text between them", remedy))
    if mistakes:
        return RetrievalOptions(), mistakes
    return RetrievalOptions(**values), []


def _range(
    text: str, least: int, read_number: Callable[[str], int | None]
) -> tuple[int, int] | None:
    low, dash, high = text.partition("-")
    first = read_number(low)
    last = read_number(high) if dash else first
    if first is None or last is None or not least <= first <= last:
        return None
    return first, last


def _whole(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_LARGEST))
    if is_number and int(text) <= _LARGEST:
        return int(text)
    return None


def _lengths(text: str) -> tuple[int, int] | None:
    return _range(text, 1, numbers.tokens)


def _rivals(text: str) -> tuple[int, int] | None:
    return _range(text, 0, _whole)


def _questions(text: str) -> tuple[int, int] | None:
    return _range(text, 1, _whole)


def _documents(text: str) -> int | None:
    return _whole(text) or None


def _place(text: str) -> tuple[float, float] | None:
    low, dash, high = text.partition("-")
    first = _share(low)
    last = _share(high) if dash else None
    if first is None or last is None or first > last:
        return None
    return first, last


def _share(text: str) -> float | None:
    if re.fullmatch(r"0|1|[01]?\.\d{1,9}", text) and float(text) <= 1:
        return float(text)
    return None


def _families(text: str) -> tuple[tuple[str, float], ...] | None:
    found = dict(_family_shares(text))
    names = [part.partition(":")[0] for part in text.split(",")]
    if len(found) < len(names) or not set(names) <= set(FAMILY_NAMES):
        return None
    return tuple((name, found[name]) for name in FAMILY_NAMES if name in found)


def _family_shares(text: str) -> Iterator[tuple[str, float]]:
    for part in text.split(","):
        name, colon, share = part.partition(":")
        if not colon:
            yield name, 1.0
        elif re.fullmatch(r"\d{1,6}(\.\d{1,6})?", share) and float(share) > 0:
            yield name, float(share)


def _targets(text: str) -> str | None:
    if text in ("answers", "all"):
        return text
    return None


# option -> its reader, which returns None for what it cannot read, and its form
_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "families": (
        _families,
        f"families=NAME:SHARE,NAME:SHARE with some of {', '.join(FAMILY_NAMES)}, each once",
    ),
    "tokens": (_lengths, "tokens=LEAST-MOST or tokens=NUMBER, in tokens, such as 1k-4k"),
    "rivals": (_rivals, f"rivals=LEAST-MOST or rivals=NUMBER, of 0 to {_LARGEST:,}"),
    "questions": (_questions, f"questions=LEAST-MOST or questions=NUMBER, of 1 to {_LARGEST:,}"),
    "place": (_place, "place=FIRST-LAST, shares of a document from 0 to 1, such as 0-0.25"),
    "targets": (_targets, "targets=answers or targets=all"),
    "documents": (_documents, f"documents=NUMBER, of 1 to {_LARGEST:,}"),
}
