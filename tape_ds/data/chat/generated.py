"""Conversations of ``generated:retrieval``: a text with records from the user, who then asks about it turn by turn."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tape_ds.data.chat import template
from tape_ds.data.chat.conversations import ASSISTANT, Conversation, Row
from tape_ds.data.chat.template import UnfitTemplateError
from tape_ds.data.order import RETRIEVAL_DRAWS, generator
from tape_ds.data.retrieval.documents import DocumentWriter, NoRoomError
from tape_ds.data.retrieval.families import AskedRecord
from tape_ds.data.retrieval.sequences import require_room, writer_of
from tape_ds.data.sources import SPLITS, Source
from tape_ds.data.sources.generated import GeneratedDocuments
from tape_ds.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ATTEMPTS = 20
"""Conversations that are drawn for one that fits its length."""
SPARE = 4
"""Tokens of text that are given up beyond those that were too many."""


def read(
    source: Source, split: str, *, tokenizer: "PreTrainedTokenizerBase", day: date, cache_dir: Path
) -> Iterator[Row]:
    """Yield as many conversations as the source says, each a function of the split and its number.

    Each is as long as was drawn for it, as the chat template renders it, or a little shorter. Raises
    :class:`tape_ds.errors.UserError`: one has no room for the least that is asked of it.
    """
    assert isinstance(source, GeneratedDocuments)
    tokens = source.options.tokens
    count = source.options.documents
    assert tokens is not None and count is not None, "checked with the recipe"
    writer = writer_of(source, tokenizer, cache_dir, split=split)
    require_room(source, writer, tokens[1])
    for number in range(count):
        rng = generator(SPLITS.index(split), RETRIEVAL_DRAWS, number)
        length = int(rng.integers(*tokens, endpoint=True))
        attempts = (_conversation(writer, rng, length, tokenizer, day) for _ in range(ATTEMPTS))
        turns = next(filter(None, attempts), None)
        if turns is None:
            wrong = f"as the chat template renders them, its questions and records have more than {length:,} tokens"
            raise UserError(
                source.problem(wrong, "give it more tokens, or fewer questions or rivals")
            )
        yield Row(f"{source.name}:{number}", turns, None, {})


def _conversation(
    writer: DocumentWriter,
    rng: np.random.Generator,
    length: int,
    tokenizer: "PreTrainedTokenizerBase",
    day: date,
) -> Conversation | None:
    """Return a conversation of at most ``length`` tokens; None if what was drawn does not fit that."""
    try:
        plan = writer.plan(rng, length)
    except NoRoomError:
        return None
    rivals = plan.rivals
    room = plan.room
    drawn = int(rng.integers(2**63))
    while True:
        body = writer.body(np.random.default_rng(drawn), plan.puzzle, rivals, room)
        turns = _turns(body.text, plan.puzzle.questions)
        try:
            ids, _ = template.encoded(turns, tokenizer, day=day)
        except UnfitTemplateError:
            # its reader says what is wrong, as of any conversation
            return turns
        excess = len(ids) - length
        if excess <= 0:
            return turns
        if writer.haystack is not None and room > 0:
            # tokens that came of the text
            read = plan.room + excess
            room = max(0, room * plan.room // read - SPARE)
        elif rivals:
            rivals = rivals[: -(1 + excess // 8)]
        else:
            return None


def _turns(text: str, questions: tuple[AskedRecord, ...]) -> Conversation:
    turns: Conversation = []
    before = f"{text}\n"
    for question in questions:
        turns.append({"role": "user", "content": before + question.ask})
        turns.append({"role": ASSISTANT, "content": question.answer})
        before = ""
    return turns
