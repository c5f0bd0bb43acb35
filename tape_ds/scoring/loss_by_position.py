"""Loss by position: how well a model predicts each span of a long document.

One forward pass computes the hidden states of the whole document; the output head is applied to a chunk at a time, so
that the logits (T x vocabulary: 3 GiB for 16,384 tokens and 49,152 entries in fp32) never exist as a whole. Losses are
in nats, computed from fp32 logits and summed in fp64.

The token at position t is the target that positions 0 .. t - 1 predict, and its loss counts in the span that holds t.
Position 0 is not a target, so the first span has one target less.
"""

import torch
from torch import Tensor, nn

from tape_ds.scoring.causal_lm import bare, evaluating, head_of
from tape_ds.scoring.span_losses import SpanLosses


def score(model: nn.Module, input_ids_1T: Tensor, span: int, chunk: int = 1024) -> SpanLosses:
    """Return the loss by position of one document.

    Args:
        model: a causal LM of transformers or of the same form (base model, ``get_output_embeddings``); bare, or wrapped
            by peft, DistributedDataParallel or a DeepSpeed engine. Under ZeRO-3 every rank must score a document of
            the same length, since each call of the head gathers its weight. It is scored in evaluation mode; the mode
            of every module is restored.
        input_ids_1T: token ids int64 [1, T], T >= 2.
        span: positions per span, 2 or more.
        chunk: positions whose logits exist at once.

    Raises:
        ValueError: shapes and sizes as above, a token outside the vocabulary, or see :func:`head_of`.
    """
    if input_ids_1T.ndim != 2 or input_ids_1T.shape[0] != 1 or input_ids_1T.shape[1] < 2:
        raise ValueError(f"input_ids_1T has shape {tuple(input_ids_1T.shape)}: one document [1, T], T >= 2, is needed")
    if span < 2 or chunk < 1:
        raise ValueError(f"span = {span}, chunk = {chunk}: span must be 2 or more, chunk 1 or more")
    losses_1N, _ = target_losses(model, input_ids_1T, chunk=chunk)
    losses_N = losses_1N[0]
    nll, counts = [], []
    starts = range(0, len(losses_N) + 1, span)
    for start in starts:
        within = losses_N[max(0, start - 1) : start + span - 1]  # target t is entry t - 1
        counts.append(len(within))
        nll.append(float(within.mean()))
    return SpanLosses(span, tuple(starts), tuple(nll), tuple(counts))


@torch.no_grad()
def target_losses(
    model: nn.Module, input_ids_BT: Tensor, *, first: int = 1, chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """Return the loss of every target from position ``first`` on, and whether it was the most likely token.

    Args:
        model: see :func:`score`.
        input_ids_BT: token ids int64 [B, T], independent sequences without padding.
        first: position of the first target, 1 .. T - 1.
        chunk: positions, of all sequences together, whose logits exist at once.

    Returns:
        Losses in nats, fp64, and bools, both [B, N] on the CPU, N = T - first.

    Raises:
        ValueError: ``first`` outside its bounds, a token outside the vocabulary, or see :func:`head_of`.
    """
    tokens = input_ids_BT.shape[-1]
    if not 1 <= first < tokens:
        raise ValueError(f"first = {first}: 1 to {tokens - 1}, since a target needs a token before it")
    causal_lm = bare(model)
    head = head_of(causal_lm)
    lowest, highest = int(input_ids_BT.min()), int(input_ids_BT.max())
    if not 0 <= lowest <= highest < causal_lm.config.vocab_size:
        raise ValueError(f"token ids {lowest} .. {highest} leave the vocabulary of {causal_lm.config.vocab_size}")

    ids_BT = input_ids_BT.to(causal_lm.get_input_embeddings().weight.device)
    with evaluating(causal_lm):
        hidden_BTD = causal_lm.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        hidden_MD = hidden_BTD[:, first - 1 : -1].flatten(0, 1)  # M = B N
        targets_M = ids_BT[:, first:].flatten()
        # Allocated once: small results left between the chunks' logits would keep the allocator from reusing their
        # memory, and the peak would grow with the length after all.
        nll_M = torch.empty(len(targets_M), dtype=torch.float64)
        foreseen_M = torch.empty(len(targets_M), dtype=torch.bool)
        for start in range(0, len(targets_M), chunk):
            part = slice(start, start + chunk)
            logits_CV = head(hidden_MD[part]).float()
            nll_M[part] = nn.functional.cross_entropy(logits_CV, targets_M[part], reduction="none")
            foreseen_M[part] = logits_CV.argmax(dim=-1) == targets_M[part]
    return nll_M.view(len(ids_BT), -1), foreseen_M.view(len(ids_BT), -1)
