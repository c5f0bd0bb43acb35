"""The tokens of one answer, by transformers' ``generate``, each told as it is drawn, with its probability if asked."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from tape_ds.scoring import CHUNK
from tape_ds.scoring.replies import reads_in_pieces
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
    rows = zip(tokens, own_N1[:, 0].tolist(), ids_NK.tolist(), values_NK.tolist(), strict=True)
    for token, own, ids, values in rows:
        found.append(Scored(token, own, tuple(zip(ids, values, strict=True))))
    return found


def require_finite(logits: Tensor) -> None:
    """Refuse NaN and infinity; -infinity is a token that the model rules out."""
    largest = logits.max(dim=-1).values  # NaN if one is
    if not bool(largest.isfinite().all()):
        wrong = "The model's logits are not finite numbers: its weights or its configuration are damaged."
        raise RefusalError(wrong, status=500, code="logits_not_finite")


class _Seen(LogitsProcessor):
    """Keeps the logits of a step as the model gave them."""

    logits_1V: Tensor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        require_finite(scores)
        self.logits_1V = scores
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
    served: Served,
    ids: Sequence[int],
    settings: AnswerSettings,
    tell: Callable[[Scored], bool],
    check: Callable[[], None],
) -> None:
    """Draw the tokens that follow a prompt.

    Args:
        served: its model.
        ids: the prompt's.
        settings: ``max_tokens`` with room for them, ``seed`` if samples are to repeat.
        tell: is called with each token; returns whether it is the last.
        check: is called before each token; raises once the client has left.
    """
    model = served.model
    ids_1T = torch.tensor([ids], device=served.device)
    in_pieces = len(ids) > CHUNK and reads_in_pieces(model)
    seen = _Seen()
    config = GenerationConfig(
        do_sample=not settings.is_greedy,
        top_k=None if settings.is_greedy else 0,  # generate fills in 50 for None
        max_new_tokens=settings.max_tokens,
        use_cache=True,
        prefill_chunk_size=CHUNK if in_pieces else None,
        pad_token_id=0,
    )
    seed = secrets.randbits(63) if settings.seed is None else settings.seed
    gpus = [served.device] if served.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), served.noticing(check):
        torch.manual_seed(seed)
        model.generate(
            ids_1T,
            attention_mask=torch.ones_like(ids_1T),
            generation_config=config,
            logits_processor=LogitsProcessorList([seen, *settings.processors(len(ids))]),
            stopping_criteria=StoppingCriteriaList([_Told(seen, settings, tell)]),
        )
