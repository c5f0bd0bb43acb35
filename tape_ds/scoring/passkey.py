"""Passkey retrieval: whether a model finds the number in a long prompt (see :mod:`tape_ds.data.passkey`).

The reply is greedy and always ``NEW_TOKENS`` long: room for a space and for more digits than the largest key has, at a
digit a token. It is correct when its first integer is the key (PoSE's rule). LongLoRA's rule, the reply begins with the
key's token ids, is stored too: it accepts 123456 for 12345, and rejects a key after other words.

Replies of fixed length, and prompts read in a number of pieces that depends on their nominal length only, mean that all
prompts of a length call the same modules equally often: so ranks that share a model's weights stay in step.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from tape_ds.data.passkey import PasskeyPrompt, answer_ids
from tape_ds.models.inputs import CACHE
from tape_ds.scoring import CHUNK, Each, in_turn
from tape_ds.scoring.causal_lm import bare, evaluating

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NEW_TOKENS = 8
"""Tokens of a reply."""


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
        replies = [{**vars(reply), "right": reply.correct} for reply in self.replies]
        sums = {"trials": self.trials, "correct": self.correct, "accuracy": self.accuracy}
        return {"length": self.length, **sums, "replies": replies}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Passkey":
        """Read a stored result; the sums are derived again."""
        replies = []
        for stored in values["replies"]:
            fields = {name: value for name, value in stored.items() if name != "right"}
            # a stored result returns the words nan and inf as numbers
            replies.append(Reply(**{**fields, "reply": str(fields["reply"])}))
        return cls(values["length"], tuple(replies))


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
    new_tokens: int = NEW_TOKENS,
    use_cache: bool = True,
    each: Each = in_turn,
) -> list[Passkey]:
    """Return the replies of ``model`` to ``prompts``, by ascending length.

    Args:
        model: a causal LM of transformers or of this project; bare, or wrapped by peft, DistributedDataParallel or a
            DeepSpeed engine. It is evaluated in evaluation mode; the mode of every module is restored.
        tokenizer: decodes the replies.
        prompts: of any lengths.
        chunk: tokens of a prompt that are read at once, if the model :func:`reads_in_pieces`.
        new_tokens: of a reply.
        use_cache: False reads the whole text again for every new token.
        each: see :data:`tape_ds.scoring.Each`; called once for each length.

    Raises:
        ValueError: ``chunk`` or ``new_tokens`` below 1.
    """
    if chunk < 1 or new_tokens < 1:
        raise ValueError(f"chunk = {chunk}, new_tokens = {new_tokens}: 1 or more")
    causal_lm = bare(model)

    def answer(prompt: PasskeyPrompt) -> Reply:
        ids = _continue(causal_lm, prompt, chunk, new_tokens, use_cache)
        end = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
        key_ids = answer_ids(tokenizer, prompt.key)
        same = None if key_ids is None else tuple(ids[: len(key_ids)]) == key_ids
        return Reply(prompt.trial, len(prompt.ids), prompt.depth, prompt.key, tokenizer.decode(ids[:end]), same)

    with evaluating(causal_lm):
        lengths = sorted({prompt.length for prompt in prompts})
        return [Passkey(n, tuple(each(answer, [prompt for prompt in prompts if prompt.length == n]))) for n in lengths]


def reads_in_pieces(causal_lm: Any) -> bool:
    """Return whether reading a text in pieces, from a cache, is exact: an encoding of this project declares it with
    ``cache_exact``; transformers' models promise nothing."""
    return bool(getattr(getattr(causal_lm.base_model, "encoding", None), "cache_exact", False))


@torch.no_grad()
def _continue(causal_lm: Any, prompt: PasskeyPrompt, chunk: int, new_tokens: int, use_cache: bool) -> list[int]:
    """Return the greedy continuation; logits of the last token alone are computed."""
    ids_1T = torch.tensor([prompt.ids], device=causal_lm.get_input_embeddings().weight.device)
    cache = DynamicCache(config=causal_lm.config) if use_cache else None

    def next_token(unread_1T: Tensor) -> Tensor:
        inputs = {"input_ids": unread_1T, CACHE: cache, "use_cache": use_cache, "logits_to_keep": 1}
        return causal_lm(**inputs).logits[:, -1].argmax(dim=-1)

    chosen: list[Tensor] = []
    if cache is None:
        for _ in range(new_tokens):
            chosen.append(next_token(ids_1T))
            ids_1T = torch.cat((ids_1T, chosen[-1][None]), dim=1)
    else:
        # as many pieces as any prompt of this nominal length, see above
        count = min(-(-prompt.length // chunk), ids_1T.shape[1]) if reads_in_pieces(causal_lm) else 1
        for piece_1T in ids_1T.tensor_split(count, dim=1):
            chosen = [next_token(piece_1T)]
        while len(chosen) < new_tokens:
            chosen.append(next_token(chosen[-1][None]))
    return [int(token) for token in torch.cat(chosen)]
