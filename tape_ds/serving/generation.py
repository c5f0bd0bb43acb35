"""The tokens of one answer, by transformers' ``generate``, each told as it is drawn, with its probability if asked."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from tape_ds.models.inputs import CACHE
from tape_ds.scoring import CHUNK
from tape_ds.scoring.replies import reads_in_pieces
from tape_ds.serving.read_prompt import ReadPrompt
from tape_ds.serving.refusal import RefusalError
from tape_ds.serving.served import Served
from tape_ds.serving.settings import AnswerSettings


@dataclass(frozen=True)
class Scored:
    """A token and what the model gave it."""

    token: int
    logprob: float | None = None
    """Of the model's own distribution, before temperature, penalties and biases, from fp32 logits, in nats; None if it
    was not asked for, or the token is a text's first."""
    likeliest: tuple[tuple[int, float], ...] = ()
    """Tokens with the largest probabilities in its place, largest first."""


def scored(logits_NV: Tensor, tokens: Sequence[int], likeliest: int) -> list[Scored]:
    """Return the probabilities of N tokens by the logits [N, V] of their places."""
    require_finite(logits_NV)
    logprobs_NV = torch.log_softmax(logits_NV.float(), dim=-1)
    own_N1 = logprobs_NV.gather(1, torch.tensor(tokens, device=logprobs_NV.device)[:, None])
    values_NK, ids_NK = logprobs_NV.topk(min(likeliest, logprobs_NV.shape[-1]))
    found = []
    # as lists at once: a number at a time would wait for the GPU each time
    rows = zip(tokens, own_N1[:, 0].tolist(), ids_NK.tolist(), values_NK.tolist(), strict=True)
    for token, own, ids, values in rows:
        found.append(Scored(token, own, tuple(zip(ids, values, strict=True))))
    return found


def require_finite(logits: Tensor) -> None:
    """Refuse NaN and infinity; -infinity is a token that the model rules out."""
    # NaN if one is
    largest = logits.max(dim=-1).values
    if not bool(largest.isfinite().all()):
        wrong = "The model's logits are not finite numbers: its weights or its configuration are damaged."
        raise RefusalError(wrong, status=500, code="logits_not_finite")


class _Seen(LogitsProcessor):
    """Keeps the logits of a step as the model gave them; those after a prompt are told."""

    logits_1V: Tensor

    def __init__(self, after_prompt: Callable[[Tensor], None]):
        self._after_prompt: Callable[[Tensor], None] | None = after_prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        require_finite(scores)
        self.logits_1V = scores
        if self._after_prompt is not None:
            self._after_prompt(scores)
            self._after_prompt = None
        return scores


class _Told(StoppingCriteria):
    """Tells each token, and stops where it is answered with True."""

    def __init__(self, seen: _Seen, settings: AnswerSettings, tell: Callable[[Scored], bool]):
        self.seen = seen
        self.settings = settings
        self.tell = tell

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        token = int(input_ids[0, -1])
        if self.settings.likeliest is None:
            one = Scored(token)
        else:
            (one,) = scored(self.seen.logits_1V, [token], self.settings.likeliest)
        ended = self.tell(one)
        return torch.full((len(input_ids),), ended, dtype=torch.bool, device=input_ids.device)


@torch.no_grad()
def continue_prompt(
    prompt: ReadPrompt,
    settings: AnswerSettings,
    tell: Callable[[Scored], bool],
    check: Callable[[], None],
) -> None:
    """Draw the tokens that follow a prompt, the same whether it was read before or not.

    Args:
        prompt: with its model.
        settings: ``max_tokens``, 1 or more, with room for them; ``seed`` if samples are to repeat.
        tell: is called with each token; returns whether it is the last.
        check: is called before each token; raises once the client has left.
    """
    served = prompt.served
    cache = prompt.begin_answer()
    logits_1V = prompt.next_logits_1V
    ids_1T = torch.tensor([prompt.ids], device=served.device)
    left = settings.max_tokens
    seen = _Seen(lambda _: None)
    # it was not read, or nothing of it could be kept
    if cache is None and left > 1:
        logits_1V = None
    if logits_1V is None:
        cache = None
        if prompt.has_more:
            cache = prompt.new_cache()
            seen = _Seen(lambda found_1V: prompt.keep(found_1V, cache, grows=True))
    processors = LogitsProcessorList([seen, *settings.processors(len(prompt.ids))])
    told = _Told(seen, settings, tell)
    seed = secrets.randbits(63) if settings.seed is None else settings.seed
    # the process's own random numbers stay as they were
    gpus = [served.device] if served.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), served.noticing(check):
        torch.manual_seed(seed)
        if logits_1V is not None:
            # as generate draws it
            scores_1V = processors(ids_1T, logits_1V.to(torch.float32, copy=True))
            if settings.is_greedy:
                token_11 = scores_1V.argmax(dim=-1, keepdim=True)
            else:
                token_11 = torch.multinomial(torch.softmax(scores_1V, dim=-1), num_samples=1)
            ids_1T = torch.cat((ids_1T, token_11), dim=-1)
            left -= 1
            if bool(told(ids_1T, None).all()):
                left = 0
        if left:
            _generate(served, ids_1T, cache, left, settings, processors, told)
    prompt.end_answer()


def _generate(
    served: Served,
    ids_1T: Tensor,
    cache: Any,
    most: int,
    settings: AnswerSettings,
    processors: LogitsProcessorList,
    told: _Told,
) -> None:
    model = served.model
    unread = ids_1T.shape[1]
    kept = {}
    if cache is not None:
        unread -= cache.get_seq_length()
        kept[CACHE] = cache
    # in one piece a long prompt's logits and masks would take more memory than its cache
    in_pieces = unread > CHUNK and reads_in_pieces(model)
    config = GenerationConfig(
        do_sample=not settings.is_greedy,
        # generate fills in 50 for None
        top_k=None if settings.is_greedy else 0,
        max_new_tokens=most,
        use_cache=True,
        prefill_chunk_size=CHUNK if in_pieces else None,
        pad_token_id=0,
    )
    model.generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        generation_config=config,
        logits_processor=processors,
        stopping_criteria=StoppingCriteriaList([told]),
        **kept,
    )
