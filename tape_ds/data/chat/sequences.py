"""Sequences of chat tuning: conversations rendered once, truncated or left out where they are too long, and packed.

Two caches, as for documents (:mod:`tape_ds.data.tokenized`): every conversation whole, with the mask of its assistant's
tokens; and sequences packed from those that a run takes. The longest length and the held-out conversations change only
the second.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow.compute
import torch

from tape_ds.data import cache, placeholders, sources
from tape_ds.data.bad_rows import BadRows, SourceBadRows
from tape_ds.data.chat import conversations, generated, template
from tape_ds.data.chat.conversations import COLUMN, TooLong
from tape_ds.data.chat.template import UnfitTemplateError
from tape_ds.data.order import AnswerSequences, item
from tape_ds.data.pack import whole
from tape_ds.data.selection import spread, token_counts
from tape_ds.data.tokenized import FIELD_OF, tokenizer_fingerprint
from tape_ds.errors import Problem

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

# Part of every key: raise it when the code below gives other output for the same input.
FORMAT = 5


@dataclass(frozen=True)
class CutConversations:
    read: int
    # truncated
    cut: int
    # tokens that the truncated ones lost
    cut_tokens: int
    # too long
    left_out: int
    # left out because no token of an answer would be kept
    unanswered: int

    def __str__(self) -> str:
        lost = f"{self.cut:,} of {self.read:,} conversations cut by {self.cut_tokens:,} tokens"
        return f"{lost}; left out: {self.left_out:,} too long, {self.unanswered:,} without an answer in what is kept"


@dataclass(frozen=True)
class Chosen:
    """The conversations that a run takes."""

    # all of them, from `rendered`
    conversations: "datasets.Dataset"
    # indices of those taken, int64 [k], rising
    numbers: np.ndarray
    max_tokens: int
    cut: CutConversations

    @property
    def lengths(self) -> np.ndarray:
        return np.minimum(token_counts(self.conversations)[self.numbers], self.max_tokens)

    def spread(self, count: int | None = None) -> Iterator[np.ndarray]:
        """Yield ``count`` evenly spread conversations, or all: [n, 2], n <= ``max_tokens``, the token ids, and 1 where
        a token is a target."""
        stored = self.conversations.with_format(
            "numpy", columns=["input_ids", "targets"], dtype=np.int64
        )
        numbers = self.numbers if count is None else self.numbers[spread(len(self.numbers), count)]
        for number in numbers:
            row = stored[int(number)]
            yield np.stack([row["input_ids"], row["targets"]], axis=1)[: self.max_tokens]


def rendered(
    specs: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    split: str,
    cache_dir: str | Path,
    day: date,
    bad_rows: BadRows | None = None,
) -> "datasets.Dataset":
    """Return every conversation of ``specs``, in their order; each spec has a separate cache folder.

    ``day`` is the date for a template that writes one.

    Returns:
        Rows ``{name: string, input_ids: list<int32>, targets: list<int8>, first: int32, ends: list<int32>,
        unread: list<string>}``: ``targets`` is 1 for tokens of the assistant, ``first`` the index of the first of them
        or -1, ``ends`` the end of each answer (:func:`tape_ds.data.chat.template.ends`), ``unread`` the names of the
        row's other columns. A conversation's first token is never a target: nothing predicts it.
    """
    from datasets import Features, List, Value, concatenate_datasets

    columns = {
        "name": Value("string"),
        "input_ids": List(Value("int32")),
        "targets": List(Value("int8")),
    }
    columns |= {"first": Value("int32"), "ends": List(Value("int32"))}
    features = Features({**columns, "unread": List(Value("string"))})
    text = tokenizer.chat_template
    dated = {"day": day.isoformat()} if template.is_dated(tokenizer) else {}
    field = FIELD_OF[split]
    identity = tokenizer_fingerprint(tokenizer)
    parts = []
    for source in [sources.parse(conversations.completed(spec), field) for spec in specs]:
        source_bad_rows = source.bad_rows = SourceBadRows(
            bad_rows or BadRows(), source.field, source.spec
        )
        data = conversations.fingerprint(source, split)
        key = cache.key(
            "chat",
            format=FORMAT,
            data=data,
            split=split,
            tokenizer=identity,
            template=text,
            **dated,
            **placeholders.part_of_key(tokenizer),
        )
        rows = partial(_rendered_rows, source, split, tokenizer, day, Path(cache_dir))
        none = source.problem("it has no rows", "give data with a conversation a row")
        parts.append(cache.rows(cache_dir, key, features, rows, source_bad_rows, none=none))
    return concatenate_datasets(parts)


def _rendered_rows(
    source: sources.Source,
    split: str,
    tokenizer: "PreTrainedTokenizerBase",
    day: date,
    cache_dir: Path,
) -> Iterator[dict[str, Any]]:
    read = template.names(tokenizer)[0] - {COLUMN}
    found = conversations.read
    if isinstance(source, sources.GeneratedDocuments):
        found = partial(generated.read, tokenizer=tokenizer, day=day, cache_dir=cache_dir)
    for row in found(source, split):
        if changing := sorted(row.others.keys() & read):
            wrong = f"{row.name}: the chat template reads {', '.join(changing)}, which are not passed on"
            source.leave_out(wrong, "remove the column, or rename it if it means something else")
            continue
        try:
            ids, targets = template.encoded(row.turns, tokenizer, row.tools, day)
        except UnfitTemplateError as error:
            source.leave_out(f"{row.name}: {error}", error.remedy)
            continue
        if placeholders.leave_out(source, row.name, ids, tokenizer):
            continue
        targets[:1] = False
        yield {
            "name": row.name,
            "input_ids": ids,
            "targets": targets.astype(np.int8),
            "first": int(targets.argmax()) if targets.any() else -1,
            "ends": template.ends(ids, targets, tokenizer),
            "unread": sorted(row.others),
        }


def counted(conversations: "datasets.Dataset", column: str) -> Counter[Any]:
    """Count the values in the lists of a column of :func:`rendered`."""
    counts = pyarrow.compute.value_counts(
        pyarrow.compute.list_flatten(conversations.data.column(column))
    )
    return Counter({pair["values"]: pair["counts"] for pair in counts.to_pylist()})


def choose(
    conversations: "datasets.Dataset", numbers: np.ndarray, max_tokens: int, too_long: TooLong
) -> Chosen:
    """Return the conversations that a run takes among ``numbers``; no token is read."""
    lengths = token_counts(conversations)[numbers]
    first = conversations.data.column("first").to_numpy().astype(np.int64)[numbers]
    long = lengths > max_tokens
    out = long if too_long == "leave_out" else np.zeros_like(long)
    unanswered = ~out & ((first < 0) | (first >= max_tokens))
    cut = long & ~out & ~unanswered
    counts = CutConversations(
        len(numbers),
        int(cut.sum()),
        int((lengths[cut] - max_tokens).sum()),
        int(out.sum()),
        int(unanswered.sum()),
    )
    return Chosen(conversations, numbers[~out & ~unanswered], max_tokens, counts)


def packed(chosen: Chosen, cache_dir: str | Path) -> "datasets.Dataset":
    """Return the chosen conversations packed into sequences, none cut (:func:`tape_ds.data.pack.whole`).

    Returns:
        Rows ``{input_ids: list<int32>, targets: list<int8>, document_ids: list<int32>}`` of at most ``max_tokens``.
    """
    from datasets import Features, List, Value

    features = Features(
        {
            "input_ids": List(Value("int32")),
            "targets": List(Value("int8")),
            "document_ids": List(Value("int32")),
        }
    )
    none = Problem(
        "max_tokens",
        chosen.max_tokens,
        "no conversation is left",
        "give more tokens, or other data",
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
            yield {
                "input_ids": ids,
                "targets": targets.astype(np.int8),
                "document_ids": sequence["document_ids"],
            }

    return cache.rows(cache_dir, key, features, rows, none=none)


class ChatSequences(AnswerSequences):
    """A run's samples, packed sequences in the order of :class:`tape_ds.data.order.AnswerSequences`.

    ``document_ids`` number the conversations, ``position_ids`` begin with 0 in each (so that a sequence has the loss of
    its separate conversations, under every encoding), and every token of the assistant is a target.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("input_ids", "targets", "document_ids")

    def item(self, row: dict[str, Any]) -> dict[str, torch.Tensor]:
        owners = row["document_ids"]
        positions = np.concatenate([np.arange(length) for length in np.bincount(owners)])
        return item(row["input_ids"], np.flatnonzero(row["targets"]), positions, owners)


def answers(conversation: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Yield (ids [t], targets) of every answer of a conversation [n, 2]: the ids up to the answer's end, of which the
    last ``targets`` are the answer."""
    ids, targets = conversation.T
    borders = np.flatnonzero(np.diff(targets, prepend=0, append=0))
    for start, end in zip(borders[::2], borders[1::2], strict=True):
        yield ids[:end], int(end - start)
