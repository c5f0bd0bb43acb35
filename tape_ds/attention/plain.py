"""Attention by plain matrices: the ``reference`` backend, blocks with a bias, and a step of decoding.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, X query heads of a group, K head size, V
value width.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from tape_ds.attention.call import AttentionCall, allowed_keys, blank_padding, fp32_kept
from tape_ds.attention.score_bias import ContentBias
from tape_ds.kernels import reference


def attention_by_reference(call: AttentionCall) -> Tensor:
    """fp32 throughout, [B, H, T, S] weights in memory: ground truth of tests, and the source of
    ``output_attentions``."""
    return attention_with_weights(call)[0]


def attention_with_weights(call: AttentionCall) -> tuple[Tensor, Tensor]:
    call = blank_padding(call)
    q = call.q
    k = call.k
    v = call.v
    allowed_BTS = allowed_keys(call)
    bias: Tensor | Callable[[Tensor], Tensor] | None = None
    with fp32_kept(q):
        if isinstance(call.bias, ContentBias):
            bias = functools.partial(call.bias.block, q, allowed_BTS[:, None])
        elif call.bias is not None:
            bias = call.bias.of(slice(None), slice(None))
        return reference.attention(q, k, v, allowed_BTS, call.scale, bias, call.softcap, call.sinks)


def matrix_attention(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSV: Tensor,
    allowed_B1TS: Tensor | None,
    scale: float,
    bias_BHTS: Tensor | Callable[[Tensor], Tensor] | None = None,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Compute attention in three plain steps in the dtype of k and v, at least fp32; 0 for a query without
    a visible key. The bias may be a function of the scaled scores."""
    # The queries of a group are concatenated, instead of repeating its keys.
    groups = k_BGSK.shape[1]
    queries = q_BHTK.shape[2]
    q_BGXK = reference.upcast(q_BHTK).unflatten(1, (groups, -1)).flatten(2, 3)
    scores_BGXS = q_BGXK @ k_BGSK.transpose(-1, -2) * scale
    scores_BHTS = reference.capped(scores_BGXS.unflatten(2, (-1, queries)).flatten(1, 2), softcap)
    if bias_BHTS is not None:
        scores_BHTS = scores_BHTS + (
            bias_BHTS if isinstance(bias_BHTS, Tensor) else bias_BHTS(scores_BHTS)
        )
    if allowed_B1TS is not None:
        scores_BHTS = scores_BHTS.masked_fill(~allowed_B1TS, torch.finfo(scores_BHTS.dtype).min)
    weights_BHTS = reference.softmax(scores_BHTS, sinks_H)
    if allowed_B1TS is not None:
        weights_BHTS = weights_BHTS.masked_fill(~allowed_B1TS, 0.0)
    out_BGXV = weights_BHTS.unflatten(1, (groups, -1)).flatten(2, 3) @ v_BGSV
    return out_BGXV.unflatten(2, (-1, queries)).flatten(1, 2).to(q_BHTK.dtype)
