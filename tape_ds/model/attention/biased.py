"""Attention with a bias on the scores: a block of queries at a time, each with its block of the bias."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tape_ds.kernels import reference
from tape_ds.model.attention.call import AttentionCall, allowed_keys, blank_padding
from tape_ds.model.attention.plain import matrix_attention
from tape_ds.model.score_bias import ContentBias, ScoreBias

# Scores with a bias are computed for so few queries t at a time that B x H x t x S, or what the bias holds on its way
# to that, stays below this (16 MiB in fp32: within a CPU's caches).
BIASED_ENTRIES = 1 << 22
# And for a share of the queries at most, so that a block stops at its last query's keys and half the work is saved; but
# not for so few that calling dominates.
BIASED_SHARE, BIASED_LEAST = 8, 128

Fused = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float], Tensor]
"""(q, k, v, mask, is_causal, scale) -> output, see :func:`tape_ds.model.attention.sdpa.fused`."""


def biased_attention(call: AttentionCall, bias: ScoreBias | ContentBias, fused: Fused) -> Tensor:
    """Where the whole would be large, the blocks are computed again for the backward instead of kept; and always where
    the bias follows from the scores, since it keeps some eight numbers for each.

    Args:
        call: complete; autocast is off.
        bias: the call's own.
        fused: attention with a ready mask.
    """
    call = blank_padding(call)
    q, k, v = call.q, reference.upcast(call.k), reference.upcast(call.v)  # once; and their gradients add up in fp32
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    inner = 1 if isinstance(bias, ContentBias) else bias.inner * bias.query_marks.shape[0]
    entries = max(batch * heads, inner) * keys
    fitting = max(1, BIASED_ENTRIES // max(entries, 1))
    rows = min(fitting, max(BIASED_LEAST, -(-queries // BIASED_SHARE)), queries)
    recompute = (fitting < queries or isinstance(bias, ContentBias)) and torch.is_grad_enabled()
    blocks = []
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        seen = call.offset + stop if isinstance(call.offset, int) else keys
        arguments = (q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen], call, bias, slice(start, stop))
        if recompute:
            blocks.append(checkpoint(_block, *arguments, fused, use_reentrant=False, preserve_rng_state=False))
        else:
            blocks.append(_block(*arguments, fused))
    return torch.cat(blocks, dim=2)


def _block(
    q: Tensor, k: Tensor, v: Tensor, call: AttentionCall, bias: ScoreBias | ContentBias, at: slice, fused: Fused
) -> Tensor:
    """Attention of the queries ``at`` over the first keys.

    torch's fused kernels take a bias as a mask, but give it no gradient, and CUDA's read it as what it is only in the
    query's own dtype. Rounded to bf16 it would be off by 4 at -1,000: where it is learned or wider than the query, the
    block goes through fp32 matrices.
    """
    keys, ids = k.shape[2], call.document_ids
    ids = None if ids is None else ids[:, :keys]
    allowed_B1TS = allowed_keys(q.shape[2], keys, ids, call.offset + at.start, q.device)[:, None]
    if isinstance(bias, ContentBias):
        return matrix_attention(q, k, v, allowed_B1TS, call.scale, functools.partial(bias.block, q, allowed_B1TS))
    bias_BHTS = bias.of(at, slice(0, keys))
    if (bias.learned and torch.is_grad_enabled()) or bias_BHTS.dtype != q.dtype:
        bias_BHTS = bias_BHTS.expand(-1, q.shape[1], -1, -1)
        return matrix_attention(q, k, v, allowed_B1TS, call.scale, bias_BHTS)
    blind_B1T1 = ~allowed_B1TS.any(dim=-1, keepdim=True)
    mask = bias_BHTS.masked_fill(~(allowed_B1TS | blind_B1T1), -torch.inf)
    return fused(q, k, v, mask, False, call.scale).masked_fill(blind_B1T1, 0.0)
