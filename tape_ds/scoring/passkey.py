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

from tape_ds.data.multikey import KeyedQuestion, KeyedText
from tape_ds.data.passkey import PasskeyPrompt, answer_ids
from tape_ds.models.inputs import CACHE
from tape_ds.scoring import CHUNK, Each, in_turn
from tape_ds.scoring.losses import bare, evaluating

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
        model: see :func:`tape_ds.scoring.losses.target_losses`.
        chunk: tokens of a prompt that are read at once, if the model :func:`reads_in_pieces`.
        use_cache: False reads the whole text again for every new token.
        each: see :data:`tape_ds.scoring.Each`; called once for each length.
    """
    causal_lm = bare(model)

    def answer(prompt: PasskeyPrompt) -> Reply:
        cache = DynamicCache(config=causal_lm.config) if use_cache else None
        # as many pieces as any prompt of this nominal length, see above
        pieces = -(-prompt.length // chunk) if reads_in_pieces(causal_lm) else 1
        ids = _continue(causal_lm, prompt.ids, cache, pieces, new_tokens)
        return _reply(tokenizer, prompt, len(prompt.ids), ids)

    with evaluating(causal_lm):
        lengths = sorted({prompt.length for prompt in prompts})
        return [Passkey(n, tuple(each(answer, [prompt for prompt in prompts if prompt.length == n]))) for n in lengths]


def reads_in_pieces(causal_lm: Any) -> bool:
    """Return whether reading a text in pieces, from a cache, is exact: an encoding of this project declares it with
    ``cache_exact``; transformers' models promise nothing."""
    return bool(getattr(getattr(causal_lm.base_model, "encoding", None), "cache_exact", False))


def score_shared(
    model: nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    text: KeyedText,
    *,
    chunk: int = CHUNK,
    new_tokens: int = NEW_TOKENS,
) -> list[Passkey]:
    """Return the replies of ``model`` to the questions about a text, by ascending length.

    The text is read once, and each question is removed from the cache after its reply. A model that does not
    :func:`reads_in_pieces` reads the text again for each length; where its angles follow the length, the text keeps
    those that it was read with.
    """
    causal_lm = bare(model)
    exact = reads_in_pieces(causal_lm)
    found, read = [], 0
    with evaluating(causal_lm):
        for length, questions in text.questions.items():
            if read == 0 or not exact:
                cache, read = DynamicCache(config=causal_lm.config), 0
            end = questions[0].start  # of all questions of a length
            pieces = -(-(end - read) // chunk) if exact else 1
            _continue(causal_lm, text.ids[read:end], cache, pieces, new_tokens=1)
            read, replies = end, []
            for question in questions:
                ids = _continue(causal_lm, question.ids, cache, 1, new_tokens)
                cache.crop(-(len(question.ids) + new_tokens - 1))  # the last new token was not read
                replies.append(_reply(tokenizer, question, end + len(question.ids), ids))
            found.append(Passkey(length, tuple(replies)))
    return found


def _reply(
    tokenizer: "PreTrainedTokenizerBase", prompt: PasskeyPrompt | KeyedQuestion, tokens: int, ids: list[int]
) -> Reply:
    end = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
    key_ids = answer_ids(tokenizer, prompt.key)
    same = None if key_ids is None else tuple(ids[: len(key_ids)]) == key_ids
    return Reply(prompt.trial, tokens, prompt.depth, prompt.key, tokenizer.decode(ids[:end]), same)


@torch.no_grad()
def _continue(
    causal_lm: Any, ids: Sequence[int], cache: DynamicCache | None, pieces: int, new_tokens: int
) -> list[int]:
    """Read ``ids`` in a number of pieces, after the tokens of the cache; return the greedy continuation. Only the
    logits of the last token are computed."""
    ids_1T = torch.tensor([ids], device=causal_lm.get_input_embeddings().weight.device)

    def next_token(unread_1T: Tensor) -> Tensor:
        inputs = {"input_ids": unread_1T, CACHE: cache, "use_cache": cache is not None, "logits_to_keep": 1}
        return causal_lm(**inputs).logits[:, -1].argmax(dim=-1)

    chosen: list[Tensor] = []
    if cache is None:
        for _ in range(new_tokens):
            chosen.append(next_token(ids_1T))
            ids_1T = torch.cat((ids_1T, chosen[-1][None]), dim=1)
    else:
        for piece_1T in ids_1T.tensor_split(min(pieces, len(ids)), dim=1):
            chosen = [next_token(piece_1T)]
        while len(chosen) < new_tokens:
            chosen.append(next_token(chosen[-1][None]))
    return [int(token) for token in torch.cat(chosen)]
