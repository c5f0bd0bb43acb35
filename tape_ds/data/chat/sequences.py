"""Sequences of chat tuning: conversations rendered once, cut or left out where they are too long, and packed.

Two caches, as for documents (:mod:`tape_ds.data.packing`): every conversation whole, with the mask of its assistant's
tokens; and sequences packed from those that a run takes. How long a conversation may be, and which are held out,
changes only the second.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from tape_ds.data import cache, packing
from tape_ds.data.chat import conversations
from tape_ds.data.chat.conversations import TooLong
from tape_ds.data.chat.template import UnfitTemplateError, encoded
from tape_ds.data.dataset import item
from tape_ds.data.scrolls.sequences import AnswerSequences
from tape_ds.data.selection import spread, token_counts
from tape_ds.data.sequences import whole
from tape_ds.errors import UserError

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

# Part of every key: raise it when the code below gives other output for the same input.
FORMAT = 2


@dataclass(frozen=True)
class CutConversations:
    """What did not fit into the sequences."""

    read: int
    """Conversations."""
    cut: int
    """Of them those that have lost their end."""
    cut_tokens: int
    """Tokens that these have lost, all together."""
    left_out: int
    """Those that are left out because they are too long."""
    unanswered: int
    """Those that are left out because no token of an answer is within what would be kept."""

    @property
    def taken(self) -> int:
        """Conversations that are left."""
        return self.read - self.left_out - self.unanswered

    def __str__(self) -> str:
        lost = f"{self.cut:,} of {self.read:,} conversations cut by {self.cut_tokens:,} tokens"
        return f"{lost}; left out: {self.left_out:,} too long, {self.unanswered:,} without an answer in what is kept"


@dataclass(frozen=True)
class Chosen:
    """Conversations that are taken."""

    conversations: "datasets.Dataset"
    """Of :func:`rendered`."""
    numbers: np.ndarray
    """Of these those that are taken, int64 [k], rising."""
    max_tokens: int
    cut: CutConversations

    def spread(self, count: int | None = None) -> Iterator[np.ndarray]:
        """``count`` of them, evenly spread over all, or all: each [n, 2], n <= ``max_tokens``, its token ids, and 1
        where a token is a target."""
        stored = self.conversations.with_format("numpy", columns=["input_ids", "targets"], dtype=np.int64)
        numbers = self.numbers if count is None else self.numbers[spread(len(self.numbers), count)]
        for number in numbers:
            row = stored[int(number)]
            yield np.stack([row["input_ids"], row["targets"]], axis=1)[: self.max_tokens]


def rendered(
    specs: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    split: str,
    cache_dir: str | Path,
) -> "datasets.Dataset":
    """Return every conversation behind ``specs``, in their order; each spec has a cache folder of its own.

    Args:
        specs: see :mod:`.conversations`.
        tokenizer: with a chat template.
        split: ``"train"`` or ``"heldout"``.
        cache_dir: made if it is not there.

    Returns:
        Rows ``{name: string, input_ids: list<int32>, targets: list<int8>, first: int32}``: ``targets`` is 1 for tokens
        of the assistant, ``first`` the place of the first of them, -1 where there is none. A conversation's first token
        is never one: nothing predicts it.

    Raises:
        UserError: the data, or a template that does not render them so that answers can be told apart.
    """
    from datasets import Features, List, Value, concatenate_datasets

    columns = {"name": Value("string"), "input_ids": List(Value("int32")), "targets": List(Value("int8"))}
    features = Features({**columns, "first": Value("int32")})
    template = tokenizer.get_chat_template()
    field, identity = packing.FIELD_OF[split], packing.tokenizer_fingerprint(tokenizer)
    parts = []
    for source in [conversations.parse(spec, field) for spec in specs]:
        data = conversations.fingerprint(source, split)
        key = cache.key("chat", format=FORMAT, data=data, split=split, tokenizer=identity, template=template)

        def rows(source: conversations.Source = source) -> Iterator[dict[str, Any]]:
            none = source.problem("it has no rows", "give data with a conversation a row")
            return packing.some(_rendered_rows(source, split, tokenizer), none)

        parts.append(packing.cached(Path(cache_dir), key, features, rows))
    return concatenate_datasets(parts)


def _rendered_rows(
    source: conversations.Source, split: str, tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[dict[str, Any]]:
    for name, conversation in conversations.read(source, split):
        try:
            ids, targets = encoded(conversation, tokenizer)
        except UnfitTemplateError as error:
            remedy = (
                "mend the template, give one with {% generation %} marks around what the assistant writes "
                "(--chat_template FILE), or other data"
            )
            raise UserError(source.problem(f"{name}: {error}", remedy)) from error
        targets[:1] = False
        first = int(targets.argmax()) if targets.any() else -1
        yield {"name": name, "input_ids": ids, "targets": targets.astype(np.int8), "first": first}


def held_out(count: int, share: float) -> np.ndarray:
    """Return the numbers of ``share`` of ``count`` conversations, evenly spread over them, int64 [floor(count share)].

    A function of the two alone: a conversation that one run learns from is never held out of a run that goes on.
    """
    return spread(count, math.floor(count * share))


def choose(conversations: "datasets.Dataset", numbers: np.ndarray, max_tokens: int, too_long: TooLong) -> Chosen:
    """Return those of ``conversations`` that a run takes, from among ``numbers``. No token is read."""
    lengths = token_counts(conversations)[numbers]
    first = conversations.data.column("first").to_numpy().astype(np.int64)[numbers]
    long = lengths > max_tokens
    out = long if too_long == "leave_out" else np.zeros_like(long)
    unanswered = ~out & ((first < 0) | (first >= max_tokens))
    cut = long & ~out & ~unanswered
    counts = CutConversations(
        len(numbers), int(cut.sum()), int((lengths[cut] - max_tokens).sum()), int(out.sum()), int(unanswered.sum())
    )
    return Chosen(conversations, numbers[~out & ~unanswered], max_tokens, counts)


def packed(chosen: Chosen, cache_dir: str | Path) -> "datasets.Dataset":
    """Return the sequences that ``chosen`` fill, no conversation cut (:func:`tape_ds.data.sequences.whole`).

    Returns:
        Rows ``{input_ids: list<int32>, targets: list<int8>, document_ids: list<int32>}`` of at most ``max_tokens``.
    """
    from datasets import Features, List, Value

    features = Features(
        {"input_ids": List(Value("int32")), "targets": List(Value("int8")), "document_ids": List(Value("int32"))}
    )
    key = cache.key(
        "chat_rows",
        format=FORMAT,
        conversations=chosen.conversations._fingerprint,
        numbers=chosen.numbers.tolist(),
        max_tokens=chosen.max_tokens,
    )

    def rows() -> Iterator[dict[str, Any]]:
        for sequence in whole(chosen.spread(), chosen.max_tokens):
            ids, targets = sequence["input_ids"].T
            yield {"input_ids": ids, "targets": targets.astype(np.int8), "document_ids": sequence["document_ids"]}

    return packing.cached(Path(cache_dir), key, features, rows)


class ChatSequences(AnswerSequences):
    """A run's samples, packed sequences in the order of :class:`tape_ds.data.scrolls.sequences.AnswerSequences`.

    Items as there, but that ``document_ids`` tell the conversations apart, ``position_ids`` begin with 0 in each (so
    that a sequence gives the loss that its conversations give one by one, under every encoding), and every token of the
    assistant is a target.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("input_ids", "targets", "document_ids")

    def item(self, row: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Return the tensors of a packed sequence."""
        owners = row["document_ids"]
        positions = np.concatenate([np.arange(length) for length in np.bincount(owners)])
        return item(row["input_ids"], np.flatnonzero(row["targets"]), positions, owners)


def answers(conversation: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """(ids [t], targets) of every answer of a conversation [n, 2]: what stands before it and the answer, which is the
    last ``targets`` of them."""
    ids, targets = conversation.T
    borders = np.flatnonzero(np.diff(targets, prepend=0, append=0))
    for start, end in zip(borders[::2], borders[1::2], strict=True):
        yield ids[:end], int(end - start)
