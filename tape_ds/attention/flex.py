"""Attention by torch's FlexAttention: the encoding's bias is computed inside one fused kernel.

On a GPU it is compiled and nothing of size T x S exists. Uncompiled (and so on a CPU) the same call runs as plain
matrices, which is how the bias functions are tested without a GPU; its backward does not run there.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from tape_ds.attention.call import AttentionCall, blank_padding
from tape_ds.attention.score_bias import ContentBias, ScoreBias
from tape_ds.kernels import reference

# FlexAttention chooses its blocks by the key's width alone: with a value of 256 columns they exceed the shared
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
"""One block of queries; with fewer, FlexAttention takes another kernel, with other blocks."""


def attention_by_flex(call: AttentionCall) -> Tensor:
    # Blocks without a visible key are skipped, but the rest of a block is multiplied by 0: NaN would stay.
    return flex_attend(blank_padding(call), compiled=True)


def flex_attend(call: AttentionCall, *, compiled: bool) -> Tensor:
    """Return the output [B, H, T, V] of a call whose padding is finite; bias, causality and documents are part of the
    kernel."""
    q = call.q
    k = call.k
    v = call.v
    bias = call.bias
    softcap = call.softcap
    if isinstance(bias, ContentBias) or (bias is not None and bias.element is None):
        raise ValueError("FlexAttention needs a bias that is a function of one query and one key")

    document_ids = call.document_ids
    offset = call.offset
    window = call.window

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = key <= query + offset
        if window is not None:
            seen = seen & (key > query + offset - window)
        if document_ids is None:
            return seen
        document = document_ids[batch, query + offset]
        return seen & (document == document_ids[batch, key]) & (document >= 0)

    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return reference.capped(score, softcap)

    change = None if softcap is None else capped
    batch = None if document_ids is None else len(q)
    lengths = (q.shape[2], k.shape[2])
    function: Any = _compiled() if compiled else flex_attention
    with_sums = {} if call.sinks is None else {"return_aux": AuxRequest(lse=True)}
    answer = function(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        score_mod=change if bias is None else score_mod(bias),
        block_mask=create_block_mask(
            allowed, batch, None, *lengths, device=q.device, _compile=compiled
        ),
        scale=call.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        kernel_options=kernel_options(q.shape[2], k.shape[-1] + v.shape[-1]),
        **with_sums,
    )
    if call.sinks is None:
        out: Tensor = answer
        return out
    # A sink takes exp(sink) / (sum over the keys + exp(sink)) of the weights, and the log of that sum is known.
    out = answer[0]
    log_sums_BHT = answer[1].lse
    kept_BHT1 = torch.sigmoid(log_sums_BHT - call.sinks[:, None].to(log_sums_BHT.dtype))[..., None]
    return (out * kept_BHT1).to(out.dtype)


def kernel_options(queries: int, columns: int) -> dict[str, int] | None:
    if columns > WIDE_COLUMNS and queries >= FLEX_QUERIES:
        return SMALL_BLOCKS
    return None


def score_mod(bias: ScoreBias) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    element = bias.element
    assert element is not None
    queries_BT = bias.query_marks[:, 0, :, 0]
    keys_BS = bias.key_marks[:, 0, :, 0]
    one_sequence = {"queries": len(queries_BT) == 1, "keys": len(keys_BS) == 1}

    def modified(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_mark = queries_BT[0 if one_sequence["queries"] else batch, query]
        key_mark = keys_BS[0 if one_sequence["keys"] else batch, key]
        return score + element(query_mark, key_mark, head)

    return modified


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)
