"""Passkey retrieval: whether a model finds the number in a long prompt (see :mod:`tape_ds.data.passkey`).

The reply is greedy and always :data:`tape_ds.data.passkey.REPLY_TOKENS` long. It is correct when its first integer is
the key (PoSE's rule). LongLoRA's rule, the reply begins with the key's token ids, is stored too: it accepts 123456 for
12345, and rejects a key after other words.

Replies of fixed length, and prompts read in a number of pieces that depends on their nominal length only, mean that all
prompts of a length call the same modules equally often: so ranks that share a model's weights stay in step.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from tape_ds.data.passkey import REPLY_TOKENS, PasskeyPrompt, answer_ids
from tape_ds.scoring import CHUNK, Each, in_turn, replies
from tape_ds.scoring.losses import bare, evaluating

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Reply:
    """The reply to one prompt."""

    trial: int
    tokens: int
    """Of the prompt."""
    depth: float
    """Position of the key in the filler, 0 to 1."""
    key: int
    reply: str
    same_ids: bool | None = None
    """Whether the reply begins with the key's token ids; None if the tokenizer merges the key with other text, and in
    older results."""

    @property
    def correct(self) -> bool:
        return first_integer(self.reply) == self.key


@dataclass(frozen=True)
class Passkey:
    """All replies to prompts of one length."""

    length: int
    """Maximal tokens of a prompt."""
    replies: tuple[Reply, ...]

    @property
    def trials(self) -> int:
        return len(self.replies)

    @property
    def correct(self) -> int:
        return sum(reply.correct for reply in self.replies)

    @property
    def accuracy(self) -> float:
        return self.correct / self.trials

    def to_dict(self) -> dict[str, Any]:
        rows = [{**vars(reply), "right": reply.correct} for reply in self.replies]
        sums = {"trials": self.trials, "correct": self.correct, "accuracy": self.accuracy}
        return {"length": self.length, **sums, "replies": rows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Passkey":
        """Read a stored result; the sums are derived again."""
        found = []
        for stored in values["replies"]:
            fields = {name: value for name, value in stored.items() if name != "right"}
            # a stored result returns the words nan and inf as numbers
            found.append(Reply(**{**fields, "reply": str(fields["reply"])}))
        return cls(values["length"], tuple(found))


def first_integer(reply: str) -> int | None:
    """Return the first run of digits 0 to 9 in a reply."""
    found = re.search(r"\d+", reply, re.ASCII)
    return int(found.group()) if found is not None else None


def score(
    model: nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    prompts: Sequence[PasskeyPrompt],
    *,
    chunk: int = CHUNK,
    new_tokens: int = REPLY_TOKENS,
    use_cache: bool = True,
    each: Each = in_turn,
) -> list[Passkey]:
    """Return the replies of ``model`` to ``prompts``, by ascending length.

    Args:
        model: see :func:`tape_ds.scoring.losses.target_losses`.
        chunk: tokens of a prompt that are read at once, if the model :func:`tape_ds.scoring.replies.reads_in_pieces`.
        use_cache: False reads the whole text again for every new token.
        each: see :data:`tape_ds.scoring.Each`; called once for each length.
    """
    causal_lm = bare(model)

    def answer(prompt: PasskeyPrompt) -> Reply:
        reading: dict[str, Any] = {"new_tokens": new_tokens, "chunk": chunk, "use_cache": use_cache}
        ids = replies.reply(causal_lm, prompt.ids, length=prompt.length, **reading)
        end = len(ids)
        if tokenizer.eos_token_id in ids:
            end = ids.index(tokenizer.eos_token_id)
        key_ids = answer_ids(tokenizer, prompt.key)
        same = None if key_ids is None else tuple(ids[: len(key_ids)]) == key_ids
        text = tokenizer.decode(ids[:end])
        return Reply(prompt.trial, len(prompt.ids), prompt.depth, prompt.key, text, same)

    with evaluating(causal_lm):
        lengths = sorted({prompt.length for prompt in prompts})
        return [Passkey(n, tuple(each(answer, [prompt for prompt in prompts if prompt.length == n]))) for n in lengths]
