"""How a model is asked: questions are drawn, each is read and replied to, and the reply is scored.

:mod:`tape_ds.data.passkey` and :mod:`tape_ds.scoring.ruler_questions` draw questions whose prompts leave room for the
reply. A :class:`Kind` says how replies to them are scored. Commands and runs ask by :func:`answer`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import nn

from tape_ds.scoring import CHUNK, replies
from tape_ds.scoring.losses import bare, evaluating

Row = dict[str, Any]
"""A question and the reply to it, as they are stored."""


class Question(Protocol):
    @property
    def length(self) -> int:
        """Tokens that prompt and reply have at most, or the nominal length of a published prompt."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Tokens of the prompt."""

    @property
    def new_tokens(self) -> int:
        """Of the reply, at most."""


AnyQuestion = TypeVar("AnyQuestion", bound=Question)


@dataclass(frozen=True)
class Kind:
    """How replies to one kind of questions are scored."""

    announced: str
    """The questions in words, with ``{}`` for their number."""
    cell: tuple[str, ...]
    """Attributes of the questions that are counted together: the length, and the task if there are several."""
    ends: Callable[[nn.Module, Any], Sequence[int]]
    """Returns the tokens that end a reply, of a model and its tokenizer."""
    row: Callable[[Any, Sequence[int], Any], Row]
    """Returns the row of a question, the tokens of the reply up to its end, and the tokenizer."""
    counts: Callable[[Sequence[Row]], Row]
    """Returns the figures of a cell's rows."""
    asked: tuple[str, ...]
    """Fields of a row that tell its question."""


def answer(
    kind: Kind,
    model: nn.Module,
    tokenizer: Any,
    asked: Sequence[Question],
    *,
    stop: bool = True,
    chunk: int = CHUNK,
    use_cache: bool = True,
) -> list[Row]:
    """Return the rows of questions; what the prompts of several begin with is read once.

    Args:
        model: see :func:`tape_ds.scoring.losses.target_losses`.
        stop: whether a reply ends at its end. Without it all questions of a length call the same modules equally often,
            so that ranks that share a model's weights stay in step.
        chunk, use_cache: see :func:`tape_ds.scoring.replies.reply`; several questions need a cache.
    """
    causal_lm = bare(model)
    ends = kind.ends(model, tokenizer)
    first = asked[0]
    reading: dict[str, Any] = {"new_tokens": first.new_tokens, "chunk": chunk}
    if stop:
        reading["ends"] = ends
    with evaluating(causal_lm):
        if len(asked) == 1:
            # as many pieces as a prompt of the nominal length has
            reading |= {"length": first.length, "use_cache": use_cache}
            replied = [replies.reply(causal_lm, first.ids, **reading)]
        else:
            prompts = [question.ids for question in asked]
            replied = replies.replies_sharing(causal_lm, prompts, **reading)
    rows = []
    for question, ids in zip(asked, replied, strict=True):
        # one that did not stop at its end is cut there
        rows.append(kind.row(question, replies.until(ids, ends), tokenizer))
    return rows


def grouped(
    questions: Sequence[AnyQuestion], key: Callable[[AnyQuestion], Any]
) -> list[list[AnyQuestion]]:
    """Return the questions of each key together, in their order."""
    groups: dict[Any, list[AnyQuestion]] = {}
    for question in questions:
        groups.setdefault(key(question), []).append(question)
    return list(groups.values())


def tokens_needed(asked: Sequence[Question]) -> int:
    """Return the tokens that the longest prompt has with its reply; no less than the length, even a nominal one."""
    return max(max(each.length, len(each.ids) + each.new_tokens) for each in asked)
