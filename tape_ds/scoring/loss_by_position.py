"""Loss by position: how well a model predicts each stretch of a long document.

One forward pass gives hidden states for the whole document; the output head is applied to a stretch at a time, so that
the logits (T x vocabulary, 3 GiB for 16,384 tokens and 49,152 entries in fp32) never exist as a whole. Losses are in
nats, taken from fp32 logits and summed in fp64.

The token at position t is the target that positions 0 .. t - 1 predict; its loss is counted in the span that holds t.
Position 0 has no context and is no target, so the first span counts one token less.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tape_ds.scoring.causal_lm import bare, evaluating, head_of
from tape_ds.scoring.span_losses import SpanLosses


@torch.no_grad()
def score(model: nn.Module, input_ids_1T: torch.Tensor, span: int, chunk: int = 1024) -> SpanLosses:
    """Return loss by position of one document under ``model``.

    Args:
        model: a causal LM of transformers or of the same form (base model, ``get_output_embeddings``); bare, wrapped by
            peft, by DistributedDataParallel or by a DeepSpeed engine. Under ZeRO-3 every rank must score a document of
            the same length, since each call of the head gathers its weight. It is scored in evaluation mode; every
            module's mode is restored.
        input_ids_1T: token ids int64 [1, T], T >= 2.
        span: positions per span, 2 or more.
        chunk: positions whose logits exist at once.

    Raises:
        ValueError: shapes and sizes as above, a token outside the vocabulary, or what :func:`head_of` refuses.
    """
    if input_ids_1T.ndim != 2 or input_ids_1T.shape[0] != 1 or input_ids_1T.shape[1] < 2:
        raise ValueError(f"input_ids_1T has shape {tuple(input_ids_1T.shape)}: one document [1, T], T >= 2, is needed")
    if span < 2 or chunk < 1:
        raise ValueError(f"span = {span}, chunk = {chunk}: span must be 2 or more, chunk 1 or more")
    nll_1N, _ = target_losses(model, input_ids_1T, chunk=chunk)
    return _by_span(nll_1N[0], span)


@torch.no_grad()
def target_losses(
    model: nn.Module, input_ids_BT: torch.Tensor, *, first: int = 1, chunk: int = 1024
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of every target from position ``first`` on, N = T - first of them a sequence, and whether it was
    foreseen.

    Args:
        model: as for :func:`score`.
        input_ids_BT: token ids int64 [B, T], sequences that do not see each other and hold no padding.
        first: position of the first target, 1 .. T - 1.
        chunk: positions, of all sequences together, whose logits exist at once.

    Returns:
        Both [B, N], on the CPU: the loss in nats, fp64, and whether the target was the most likely token, bool.

    Raises:
        ValueError: ``first`` outside its bounds, a token outside the vocabulary, or what :func:`head_of` refuses.
    """
    if not 1 <= first < input_ids_BT.shape[-1]:
        raise ValueError(
            f"first = {first}: a target needs a token before it, and to be one of {input_ids_BT.shape[-1]}"
        )
    causal_lm = bare(model)
    head = head_of(causal_lm)
    _require_vocabulary(causal_lm, input_ids_BT)
    ids_BT = input_ids_BT.to(causal_lm.get_input_embeddings().weight.device)
    with evaluating(causal_lm):
        hidden_BTD = causal_lm.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        hidden_MD = hidden_BTD[:, first - 1 : -1].flatten(0, 1)  # M = B N
        nll_M, foreseen_M = _head_losses(head, hidden_MD, ids_BT[:, first:], chunk)
    return nll_M.view(len(ids_BT), -1), foreseen_M.view(len(ids_BT), -1)


def _head_losses(
    head: Callable[[torch.Tensor], torch.Tensor], hidden_MD: torch.Tensor, targets_BN: torch.Tensor, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return loss [M] fp64 and foreseen [M] bool, with [chunk, vocabulary] logits at a time.

    Both are allocated once: small results left between the chunks' logits would keep the system's allocator from giving
    the same memory to the next chunk, and the peak would grow with the length after all.
    """
    targets_M = targets_BN.flatten()
    nll_M = torch.empty(len(targets_M), dtype=torch.float64)
    foreseen_M = torch.empty(len(targets_M), dtype=torch.bool)
    for at in range(0, len(targets_M), chunk):
        here = slice(at, at + chunk)
        logits_CV = head(hidden_MD[here]).float()
        nll_M[here] = nn.functional.cross_entropy(logits_CV, targets_M[here], reduction="none")
        foreseen_M[here] = logits_CV.argmax(dim=-1) == targets_M[here]
    return nll_M, foreseen_M


def _by_span(nll_T: torch.Tensor, span: int) -> SpanLosses:
    """Targets 1 .. T - 1 -> their spans."""
    nll, counts = [], []
    starts = range(0, len(nll_T) + 1, span)
    for start in starts:
        here = nll_T[max(0, start - 1) : start + span - 1]  # target t is entry t - 1
        counts.append(len(here))
        nll.append(float(here.mean()))
    return SpanLosses(span, tuple(starts), tuple(nll), tuple(counts))


def _require_vocabulary(causal_lm: Any, ids: torch.Tensor) -> None:
    lowest, highest = int(ids.min()), int(ids.max())
    if not 0 <= lowest <= highest < causal_lm.config.vocab_size:
        raise ValueError(f"token ids {lowest} .. {highest} leave the vocabulary of {causal_lm.config.vocab_size}")
