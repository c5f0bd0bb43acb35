"""Passkey retrieval: whether a model finds the number that a long prompt hides (see :mod:`tape_ds.data.passkey`).

The reply is made greedily and is always as long as asked for (``NEW_TOKENS``: room for a space and for more digits than
the largest key has, at a digit a token). It is right when its first integer is the key (PoSE's rule). LongLoRA's rule,
as many token ids as the key has, is noted beside it: it takes 123456 for 12345, and refuses a key after other words.

A reply of fixed length, and a prompt read in a number of pieces that follows from its nominal length, mean that all
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
from tape_ds.model.inputs import CACHE
from tape_ds.scoring import CHUNK
from tape_ds.scoring.causal_lm import bare, evaluating
from tape_ds.scoring.each import Each, in_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NEW_TOKENS = 8
"""Tokens of a reply."""


@dataclass(frozen=True)
class Reply:
    """What came back for one prompt."""

    trial: int
    tokens: int
    """Of the prompt."""
    depth: float
    """Where the key stood in the filler, 0 to 1."""
    key: int
    reply: str
    same_ids: bool | None = None
    """Whether the reply begins with the key's token ids; None where the tokenizer gives it none of its own, and in
    results that did not look."""

    @property
    def correct(self) -> bool:
        """Whether the first integer of the reply is the key."""
        return first_integer(self.reply) == self.key


@dataclass(frozen=True)
class Passkey:
    """All replies to prompts of one length."""

    length: int
    """Tokens that the prompts could have."""
    replies: tuple[Reply, ...]

    @property
    def trials(self) -> int:
        """Prompts that were asked."""
        return len(self.replies)

    @property
    def correct(self) -> int:
        """Replies that give the key."""
        return sum(reply.correct for reply in self.replies)

    @property
    def accuracy(self) -> float:
        """Share of the replies that give the key, 0 to 1."""
        return self.correct / self.trials

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the sums."""
        sums = {"trials": self.trials, "correct": self.correct, "accuracy": self.accuracy}
        return {
            "length": self.length,
            **sums,
            "replies": [{**vars(each), "right": each.correct} for each in self.replies],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Passkey":
        """Return the inverse of :meth:`to_dict`; what is right is derived again."""
        fields = [{name: value for name, value in each.items() if name != "right"} for each in values["replies"]]
        # a stored result gives back the words nan and inf as numbers
        return cls(values["length"], tuple(Reply(**{**each, "reply": str(each["reply"])}) for each in fields))


def first_integer(reply: str) -> int | None:
    """Return the first run of digits 0 to 9 in a reply; None where there is none."""
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
    """Return what ``model`` replies to ``prompts``, by length, ascending.

    Args:
        model: a causal LM of transformers or of this project; bare, wrapped by peft, by DistributedDataParallel or by
            a DeepSpeed engine. It is asked in evaluation mode; every module's mode is restored.
        tokenizer: turns ids back into text.
        prompts: of any lengths.
        chunk: tokens of a prompt that are read at once; only a model that :func:`reads_in_pieces` is read so.
        new_tokens: of a reply.
        use_cache: off, the whole text is read again for every new token.
        each: asks every prompt of a length; under ZeRO-3 one that keeps all ranks in step.

    Raises:
        ValueError: ``chunk`` or ``new_tokens`` below 1.
    """
    if chunk < 1 or new_tokens < 1:
        raise ValueError(f"chunk = {chunk}, new_tokens = {new_tokens}: 1 or more")
    causal_lm = bare(model)
    found = []
    with evaluating(causal_lm):
        for length in sorted({prompt.length for prompt in prompts}):
            asked = [prompt for prompt in prompts if prompt.length == length]
            answers = each(lambda prompt: _continue(causal_lm, prompt, chunk, new_tokens, use_cache), asked)
            pairs = zip(asked, answers, strict=True)
            replies = [_reply(prompt, len(prompt.ids), ids, tokenizer) for prompt, ids in pairs]
            found.append(Passkey(length, tuple(replies)))
    return found


def reads_in_pieces(causal_lm: Any) -> bool:
    """Return whether the model promises that a text read in pieces, from a cache, gives what it gives in one.

    Encodings of this project say so by ``cache_exact``; transformers' own models promise nothing.
    """
    return bool(getattr(getattr(causal_lm.base_model, "encoding", None), "cache_exact", False))


def _reply(
    prompt: PasskeyPrompt | KeyedQuestion, tokens: int, ids: list[int], tokenizer: "PreTrainedTokenizerBase"
) -> Reply:
    """Return the text of the new tokens, up to the end of text if the model wrote one."""
    end = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
    answer = answer_ids(tokenizer, prompt.key)
    same = None if answer is None else tuple(ids[: len(answer)]) == answer
    return Reply(prompt.trial, tokens, prompt.depth, prompt.key, tokenizer.decode(ids[:end]), same)


@torch.no_grad()
def _continue(causal_lm: Any, prompt: PasskeyPrompt, chunk: int, new_tokens: int, use_cache: bool) -> list[int]:
    """Return the most likely tokens, one after another; logits of the last token alone are computed."""
    ids_1T = torch.tensor([prompt.ids], device=causal_lm.get_input_embeddings().weight.device)
    if not use_cache:
        for _ in range(new_tokens):
            ids_1T = torch.cat((ids_1T, _next(causal_lm, ids_1T, None)[None]), dim=1)
        new: list[int] = ids_1T[0, len(prompt.ids) :].tolist()
        return new
    pieces = _pieces(causal_lm, ids_1T, prompt.length, chunk)
    return _greedy(causal_lm, pieces, DynamicCache(config=causal_lm.config), new_tokens)


def _greedy(causal_lm: Any, pieces: Sequence[Tensor], cache: DynamicCache, new_tokens: int) -> list[int]:
    """Return the most likely tokens behind the cache's and the pieces'; the last one is not read."""
    for piece_1T in pieces:
        next_1 = _next(causal_lm, piece_1T, cache)
    chosen = [next_1]
    while len(chosen) < new_tokens:
        chosen.append(_next(causal_lm, chosen[-1][None], cache))
    return torch.cat(chosen).tolist()


@torch.no_grad()
def score_shared(
    model: nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    text: KeyedText,
    *,
    chunk: int = CHUNK,
    new_tokens: int = NEW_TOKENS,
) -> list[Passkey]:
    """Return what ``model`` replies to the questions of a text that they share, by length, ascending.

    The text is read once and each question is removed from the cache after its reply. A model that does not
    :func:`reads_in_pieces` reads the text again for each length; where its angles follow the length, the text keeps
    those that it was read with.
    """
    causal_lm = bare(model)
    ids_1T = torch.tensor([text.ids], device=causal_lm.get_input_embeddings().weight.device)
    found, read = [], 0
    with evaluating(causal_lm):
        for length, questions in text.questions.items():
            if read == 0 or not reads_in_pieces(causal_lm):
                cache, read = DynamicCache(config=causal_lm.config), 0
            end = questions[0].start  # all questions of a length follow the same tokens
            for piece_1T in _pieces(causal_lm, ids_1T[:, read:end], end - read, chunk):
                _next(causal_lm, piece_1T, cache)
            read, replies = end, []
            for question in questions:
                asked_1T = torch.tensor([question.ids], device=ids_1T.device)
                ids = _greedy(causal_lm, [asked_1T], cache, new_tokens)
                cache.crop(-(len(question.ids) + new_tokens - 1))
                replies.append(_reply(question, end + len(question.ids), ids, tokenizer))
            found.append(Passkey(length, tuple(replies)))
    return found


def _next(causal_lm: Any, ids_1T: Tensor, cache: DynamicCache | None) -> Tensor:
    """Return the most likely token [1] behind the cache's tokens and these."""
    use_cache = cache is not None
    output = causal_lm(input_ids=ids_1T, **{CACHE: cache}, use_cache=use_cache, logits_to_keep=1)
    return output.logits[:, -1].argmax(dim=-1)


def _pieces(causal_lm: Any, ids_1T: Tensor, length: int, chunk: int) -> Sequence[Tensor]:
    """Return the prompt in as many pieces as any prompt of ``length`` tokens, or in one where pieces would change
    it."""
    count = min(-(-length // chunk), ids_1T.shape[1]) if reads_in_pieces(causal_lm) else 1
    return ids_1T.tensor_split(count, dim=1)
