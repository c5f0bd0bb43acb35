"""Attention by torch's FlexAttention: the encoding's bias is computed inside one fused kernel.

On a GPU it is compiled and nothing of size T x S exists. Uncompiled (and so on a CPU) the same call runs as plain
matrices, which is how the bias functions are tested without a GPU; its backward does not run there.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from tape_ds.model.attention.call import AttentionCall, blank_padding
from tape_ds.model.score_bias import ContentBias, ScoreBias

# FlexAttention chooses its blocks by the key's width alone: beside a value of 256 columns they exceed the shared
# memory of sm_80 and sm_90. These need about 74 KB by their sizes.
SMALL_BLOCKS = {
    "fwd_BLOCK_M": 64,
    "fwd_BLOCK_N": 32,
    "fwd_num_stages": 2,
    "bwd_BLOCK_M1": 32,
    "bwd_BLOCK_N1": 64,
    "bwd_BLOCK_M2": 64,
    "bwd_BLOCK_N2": 32,
    "bwd_num_stages": 1,
}
WIDE_COLUMNS = 256
"""Of a key and a value together: beyond, the blocks are small."""
FLEX_QUERIES = 128
"""One block of queries; with fewer, FlexAttention takes another kernel, with blocks of its own."""


def attention_by_flex(call: AttentionCall) -> Tensor:
    """torch's FlexAttention, compiled: bias, causality and documents are part of the kernel.

    What a block skips is not read, but the rest of a block is multiplied by 0: padding is zeroed here too.
    """
    call = blank_padding(call)
    return flex_attend(
        call.q, call.k, call.v, call.causal, call.document_ids, call.offset, call.scale, call.bias, compiled=True
    )


def flex_attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSV: Tensor,
    causal: bool,
    document_ids: Tensor | None,
    offset: int | Tensor,
    scale: float,
    bias: ScoreBias | ContentBias | None,
    *,
    compiled: bool,
) -> Tensor:
    """The arguments of :func:`tape_ds.model.attention.attend.attend`, complete; -> [B, H, T, V].

    What padding holds must be finite.

    Raises:
        ValueError: a bias without an elementwise form.
    """
    if isinstance(bias, ContentBias) or (bias is not None and bias.element is None):
        raise ValueError("FlexAttention needs a bias that is a function of one query and one key")
    mask = _block_mask(q_BHTK, k_BGSK.shape[2], causal, document_ids, offset, compiled)
    function: Any = _compiled() if compiled else flex_attention
    return function(
        q_BHTK.contiguous(),
        k_BGSK.contiguous(),
        v_BGSV.contiguous(),
        score_mod=None if bias is None else score_mod(bias),
        block_mask=mask,
        scale=scale,
        enable_gqa=q_BHTK.shape[1] != k_BGSK.shape[1],
        kernel_options=kernel_options(q_BHTK.shape[2], k_BGSK.shape[-1] + v_BGSV.shape[-1]),
    )


def kernel_options(queries: int, columns: int) -> dict[str, int] | None:
    """Return what FlexAttention is told of its blocks for keys and values that are so many columns wide together."""
    return SMALL_BLOCKS if columns > WIDE_COLUMNS and queries >= FLEX_QUERIES else None


def score_mod(bias: ScoreBias) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the bias as FlexAttention's function of (score, batch, head, query, key)."""
    element = bias.element
    assert element is not None
    queries_BT, keys_BS = bias.query_marks[:, 0, :, 0], bias.key_marks[:, 0, :, 0]
    one_sequence = {"queries": len(queries_BT) == 1, "keys": len(keys_BS) == 1}

    def modified(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_mark = queries_BT[0 if one_sequence["queries"] else batch, query]
        key_mark = keys_BS[0 if one_sequence["keys"] else batch, key]
        return score + element(query_mark, key_mark, head)

    return modified


def _block_mask(
    q: Tensor, keys: int, causal: bool, document_ids: Tensor | None, offset: int | Tensor, compiled: bool
) -> BlockMask | None:
    if not causal and document_ids is None:
        return None

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = key <= query + offset if causal else key >= 0
        if document_ids is None:
            return seen
        document = document_ids[batch, query + offset]
        return seen & (document == document_ids[batch, key]) & (document >= 0)

    batch = None if document_ids is None else q.shape[0]
    return create_block_mask(allowed, batch, None, q.shape[2], keys, device=q.device, _compile=compiled)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)
