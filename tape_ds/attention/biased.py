"""Attention with a bias, a soft cap or sinks: a block of queries at a time, over the keys that it may see."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tape_ds.attention.call import AttentionCall, allowed_keys, blank_padding
from tape_ds.attention.plain import matrix_attention
from tape_ds.attention.score_bias import ContentBias, ScoreBias
from tape_ds.kernels import reference

# Such scores are computed for so few queries t at a time that B x H x t x S, or what the bias holds on its way
# to that, stays below this (16 MiB in fp32: within a CPU's caches).
BIASED_ENTRIES = 1 << 22
# And for a share of the queries at most, so that a block stops at its last query's keys and half the work is saved, or
# for as many as a window has keys; but not for so few that calling dominates.
BIASED_SHARE, BIASED_LEAST = 8, 128

Fused = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float], Tensor]
"""(q, k, v, mask, is_causal, scale) -> output, see :func:`tape_ds.attention.sdpa.fused`."""


def biased_attention(call: AttentionCall, fused: Fused) -> Tensor:
    """Large results are computed in blocks, again for the backward instead of kept; always where the bias follows from
    the scores, since it keeps some eight numbers for each. Autocast is off; ``fused`` is attention with a mask."""
    call, bias = blank_padding(call), call.bias
    # Once; and their gradients add up in fp32.
    sinks = None if call.sinks is None else reference.upcast(call.sinks)
    call = call._replace(k=reference.upcast(call.k), values=(reference.upcast(call.v),), sinks=sinks)
    (batch, heads, queries, _), keys = call.q.shape, call.k.shape[2]
    most = max(BIASED_LEAST, -(-queries // BIASED_SHARE))
    if call.window is not None:
        most = max(BIASED_LEAST, call.window)
        keys = min(keys, call.window + most)
    inner = bias.inner * bias.query_marks.shape[0] if isinstance(bias, ScoreBias) else 1
    fitting = max(1, BIASED_ENTRIES // max(max(batch * heads, inner) * keys, 1))
    rows = min(fitting, most, queries)
    recompute = (fitting < queries or isinstance(bias, ContentBias)) and torch.is_grad_enabled()
    blocks = []
    for start in range(0, queries, rows):
        part = call.part(start, min(start + rows, queries))
        if recompute:
            blocks.append(checkpoint(_block, part, fused, use_reentrant=False, preserve_rng_state=False))
        else:
            blocks.append(_block(part, fused))
    return torch.cat(blocks, dim=2)


def _block(call: AttentionCall, fused: Fused) -> Tensor:
    """Attention of a block of queries.

    torch's fused kernels take a bias as a mask, but give it no gradient, and CUDA's read it as what it is only in the
    query's own dtype. Rounded to bf16 it would be off by 4 at -1,000: where it is learned or wider than the query, the
    block goes through fp32 matrices.
    """
    q, k, v, bias = call.q, call.k, call.v, call.bias
    allowed_B1TS = allowed_keys(call)[:, None]
    matrices = functools.partial(matrix_attention, q, k, v, allowed_B1TS, call.scale)
    if bias is None:
        return matrices(softcap=call.softcap, sinks_H=call.sinks)
    if isinstance(bias, ContentBias):
        return matrices(functools.partial(bias.block, q, allowed_B1TS))
    bias_BHTS = bias.of(slice(None), slice(None))
    if (bias.learned and torch.is_grad_enabled()) or bias_BHTS.dtype != q.dtype:
        return matrices(bias_BHTS.expand(-1, q.shape[1], -1, -1))
    blind_B1T1 = ~allowed_B1TS.any(dim=-1, keepdim=True)
    mask = bias_BHTS.masked_fill(~(allowed_B1TS | blind_B1T1), -torch.inf)
    return fused(q, k, v, mask, False, call.scale).masked_fill(blind_B1T1, 0.0)
