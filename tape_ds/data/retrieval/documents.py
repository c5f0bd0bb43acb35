"""One generated document: records put into a text, and questions about them at its end.

    ... text, a record, text, a record, text ...
    Q: Which value belongs to tavo/mirel/k47?
    A: QF382

The document is written as a text and tokenised whole, so that a model sees the tokens that it will see in use. It has
exactly the tokens that are asked for where there is a text to fill it with, whose beginning is cut for that; records
alone (no ``text=``) end before, by less than a record.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numpy as np

from tape_ds.data.offsets import LocatedTokens
from tape_ds.data.prompting import beginning
from tape_ds.data.retrieval.families import FAMILIES, AskedRecord, Puzzle
from tape_ds.data.retrieval.haystack import Haystack, units
from tape_ds.data.retrieval.names import pick
from tape_ds.data.retrieval_options import RetrievalOptions

HEADERS = ("", "Questions on the above\n", "== lookups ==\n", "Now reply.\n")
STYLES = ("Q: {ask}\nA:", "{ask}", "- {ask} =>", "Asked: {ask}\nReply:")
SLACK = 16
"""Tokens of text more than needed, of which those that are too many are cut."""
_TRIED = 16
"""Records of each family that the size of the smallest is measured on."""
_ROUNDS = 8
"""Times that a document is written again, with less, because its tokens joined otherwise than its parts' did."""


class NoRoomError(ValueError):
    """Records and questions of the least size have more tokens than the document."""


@dataclass(frozen=True)
class RetrievalDocument:
    """A document of n tokens, with the tokenizer's beginning and, if asked for, an end."""

    ids: np.ndarray
    """int64 [n]."""
    is_answer: np.ndarray
    """bool [n]: tokens of an answer, the end of its line included."""
    borders: np.ndarray
    """int64 [k], rising: tokens that begin a line, a record or a question. A chunk of PoSE may begin there."""
    evidence: int
    """All records that the questions ask for are before this token; of ``borders``, the first such."""
    asked_at: int
    """The token at which the questions begin; of ``borders``."""
    family: str
    rivals: int
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Body:
    """The part before the questions; places are characters."""

    text: str
    starts: list[int]
    """Where a line or a record begins, the first excluded."""
    first_record: int
    evidence: int
    """The end of the last record that is asked for."""


@dataclass(frozen=True)
class DocumentPlan:
    """A puzzle whose parts fit a document, and the tokens that are left for text."""

    family: str
    puzzle: Puzzle
    rivals: tuple[str, ...]
    room: int


class DocumentWriter:
    """Writes documents with one tokenizer, one text and one set of options.

    Args:
        tokenizer: fast, of transformers.
        haystack: the text; None: records alone.
        end: the token that ends each document; None: none does.
    """

    def __init__(
        self,
        options: RetrievalOptions,
        tokenizer: Any,
        haystack: Haystack | None,
        end: int | None = None,
    ):
        self.options = options
        self.tokenizer = tokenizer
        self.haystack = haystack
        self.begin = np.array(beginning(tokenizer), np.int64)
        self.end = np.array([] if end is None else [end], np.int64)
        self.names = [name for name, _ in options.families]
        self.shares = options.shares()

    @property
    def added(self) -> int:
        return len(self.begin) + len(self.end)

    def write(self, rng: np.random.Generator, length: int) -> RetrievalDocument:
        """Return a document of at most ``length`` tokens. Raises :class:`NoRoomError`."""
        header = pick(rng, HEADERS)
        style = pick(rng, STYLES)
        plan = self.plan(rng, length - self.added, header, style)
        room = plan.room
        rivals = plan.rivals
        drawn = int(rng.integers(2**63))
        for _ in range(_ROUNDS):
            # the same places in every round, and as much text as gives the length
            body = self.body(np.random.default_rng(drawn), plan.puzzle, rivals, room)
            text, answers = _with_questions(body.text, plan.puzzle.questions, header, style)
            tokens = LocatedTokens(text, self.tokenizer)
            excess = len(tokens.ids) + self.added - length
            # tokens that came of the text
            read = max(1, plan.room + excess)
            if self.haystack is not None and excess < -2 * SLACK and 0 < room < 4 * length:
                # fewer than were stored: parts of characters, or what the tokenizer has no token for
                room = min(4 * length, room * plan.room // read)
            elif excess <= 0:
                return self._document(plan, len(rivals), body, tokens, answers, 0)
            elif excess < tokens.of(0, body.first_record).stop:
                return self._document(plan, len(rivals), body, tokens, answers, excess)
            elif self.haystack is not None and room > 0:
                room = max(0, room * plan.room // read - SLACK)
            else:
                rivals = rivals[: -(1 + excess // 4)] if rivals else rivals
        raise NoRoomError(f"its parts have more than {length} tokens together")

    def plan(
        self, rng: np.random.Generator, length: int, header: str = "", style: str = "{ask}"
    ) -> DocumentPlan:
        """Return what a document of ``length`` tokens holds. Raises :class:`NoRoomError`."""
        family = self.names[int(rng.choice(len(self.names), p=self.shares))]
        least, most = self.options.questions
        questions = int(rng.integers(least, most, endpoint=True))
        rivals = int(rng.integers(*self.options.rivals, endpoint=True))
        if self.haystack is None:
            # as many as there is room for, or more
            rivals = length // self.smallest
        while True:
            puzzle = FAMILIES[family](rng, questions, rivals)
            asked, _ = _with_questions("", puzzle.questions, header, style)
            fixed = sum(self._counts([*chain.from_iterable(puzzle.asked), asked]))
            if fixed <= length:
                break
            if questions == least:
                raise NoRoomError(f"its questions and their records have {fixed} tokens")
            questions = max(least, questions // 2)
        kept = puzzle.rivals
        # a family may draw a few more than are asked for
        if self.haystack is not None:
            kept = kept[:rivals]
        ends = np.cumsum([0, *self._counts(kept)])
        fitting = int(np.searchsorted(ends, length - fixed, "right")) - 1
        return DocumentPlan(family, puzzle, kept[:fitting], length - fixed - int(ends[fitting]))

    def body(
        self, rng: np.random.Generator, puzzle: Puzzle, rivals: Sequence[str], room: int
    ) -> Body:
        """Return the records in about ``room`` tokens of text, or, without a text, in any order."""
        text = ""
        # the share of the text before the first record, of which a part may be cut
        head = 0.0
        if self.haystack is not None and room > 0:
            slack = SLACK if room > 4 * SLACK else 0
            text = self.haystack.stretch(rng, room + slack)
            head = 2 * slack / (room + slack)
        # (place, number, text, whether it is asked for)
        parts: list[tuple[float, int, str, bool]] = []
        read = 0
        for unit in units(text):
            parts.append((read / len(text), len(parts), unit, False))
            read += len(unit)
        records = len(parts)
        for place, rival in zip(rng.random(len(rivals)), rivals, strict=True):
            parts.append((head + (1 - head) * float(place), len(parts), f"{rival}\n", False))
        first, last = self.options.place
        for group in puzzle.asked:
            places = np.sort(rng.uniform(first, last, len(group)))
            for place, record in zip(places, group, strict=True):
                parts.append((head + (1 - head) * float(place), len(parts), f"{record}\n", True))
        return _joined(sorted(parts), records)

    def needed(self, rng: np.random.Generator, family: str, questions: int, rivals: int) -> int:
        """Return the tokens of a document without text."""
        puzzle = FAMILIES[family](rng, questions, rivals)
        header = max(HEADERS, key=len)
        style = max(STYLES, key=len)
        asked, _ = _with_questions("", puzzle.questions, header, style)
        records = [*chain.from_iterable(puzzle.asked), *puzzle.rivals[:rivals]]
        return self.added + sum(self._counts([*records, asked]))

    @functools.cached_property
    def smallest(self) -> int:
        """Return the fewest tokens of a record, among some."""
        rng = np.random.default_rng(0)
        records: list[str] = []
        for name, _ in product(self.names, range(_TRIED)):
            records += FAMILIES[name](rng, 1, 1).rivals
        return min(self._counts(records))

    def _counts(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text and an end of line."""
        if not texts:
            return []
        lines = list(map("{}\n".format, texts))
        encoded = self.tokenizer(lines, add_special_tokens=False, verbose=False)
        return list(map(len, encoded["input_ids"]))

    def _document(
        self,
        plan: DocumentPlan,
        rivals: int,
        body: Body,
        tokens: LocatedTokens,
        answers: list[tuple[int, int]],
        cut: int,
    ) -> RetrievalDocument:
        """Return the document without its first ``cut`` tokens, which are of the text."""
        moved = len(self.begin) - cut

        def first_token(character: int) -> int:
            return int(np.searchsorted(tokens.starts, character)) + moved

        is_answer = np.zeros(len(tokens.ids), bool)
        for start, end in answers:
            is_answer[tokens.of(start, end)] = True
        asked_at = first_token(len(body.text))
        # every later question begins there
        asks = [first_token(end) for _, end in answers[:-1]]
        borders = np.unique([*map(first_token, body.starts), asked_at, *asks])
        # a text that was cut away has none
        borders = borders[borders > len(self.begin)]
        return RetrievalDocument(
            ids=np.concatenate((self.begin, tokens.ids[cut:], self.end)),
            is_answer=np.concatenate((self.begin < 0, is_answer[cut:], self.end < 0)),
            borders=borders,
            evidence=first_token(body.evidence),
            asked_at=asked_at,
            family=plan.family,
            rivals=rivals,
            answers=tuple(question.answer for question in plan.puzzle.questions),
        )


def _joined(parts: Sequence[tuple[float, int, str, bool]], records: int) -> Body:
    """Return the parts in their order; those numbered ``records`` or more are records, one on a line."""
    texts: list[str] = []
    starts: list[int] = []
    size = 0
    first_record = -1
    evidence = 0
    for _, number, text, is_asked in parts:
        is_record = number >= records
        if is_record and texts and not texts[-1].endswith("\n"):
            texts.append("\n")
            size += 1
        if size:
            starts.append(size)
        if is_record and first_record < 0:
            first_record = size
        texts.append(text)
        size += len(text)
        if is_asked:
            evidence = size
    if texts and not texts[-1].endswith("\n"):
        texts.append("\n")
        size += 1
    return Body("".join(texts), starts, first_record, evidence)


def _with_questions(
    body: str, questions: Sequence[AskedRecord], header: str, style: str
) -> tuple[str, list[tuple[int, int]]]:
    """Return the whole text, and where its answers are: from behind the question to the end of the line."""
    text = f"{body}\n{header}"
    answers = []
    for question in questions:
        text += style.format(ask=question.ask)
        start = len(text)
        text += f" {question.answer}\n"
        answers.append((start, len(text)))
    return text, answers
