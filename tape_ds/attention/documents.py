"""Attention within each document, over the tokens of all documents one after the other.

Work and memory follow the documents' lengths, not T x S, and what a layer moves besides attention does not grow with
their number: tokens are gathered once where padding is between them, and not at all where there is none.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width, P tokens of all
documents, without padding.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from tape_ds.attention.call import AttentionCall
from tape_ds.attention.document_layout import PackedLayout

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of packed tokens: [P, H, K], [P, G, K], [P, G, V] -> [P, H, V]."""


def attention_by_documents(
    call: AttentionCall, packed: PackedLayout, attention: Attention, one_width: bool
) -> tuple[Tensor, ...]:
    """Return the outputs [B, H, T, V] of a call whose offset is a number; 0 for padding, which is never read.

    ``one_width``: ``attention`` takes values only as wide as the key, and is called for every K columns.
    """
    q_PHK = _gathered(call.q, packed.query_order)
    k_PGK = _gathered(call.k, packed.key_order)
    (batch, _, queries, width), outs = call.q.shape, []
    for value in call.values:
        v_PGV = _gathered(value, packed.key_order)
        of_part = functools.partial(attention, q_PHK, k_PGK)
        out_PHV = by_key_width(of_part, v_PGV, width) if one_width else of_part(v_PGV)
        if packed.query_order is not None:
            padded = out_PHV.new_zeros(batch * queries, *out_PHV.shape[1:])
            out_PHV = padded.index_copy(0, packed.query_order, out_PHV)
        outs.append(out_PHV.unflatten(0, (batch, queries)).transpose(1, 2))
    return tuple(outs)


def why_not(call: AttentionCall) -> str | None:
    if call.q.dtype not in (torch.float16, torch.bfloat16):
        return f"is for fp16 and bf16, not {str(call.q.dtype).removeprefix('torch.')}"
    if call.layout is None:
        return None
    if torch.compiler.is_compiling() and not call.layout.known:
        return "cannot work out in a compiled graph where documents begin: give cu_seq_lens_q"
    if call.window is not None and not call.layout.contiguous:
        return "counts a window over a document's tokens alone, and padding or other documents are between them"
    return None


def by_key_width(attention: Callable[[Tensor], Tensor], value: Tensor, width: int) -> Tensor:
    """Call ``attention`` for every ``width`` columns of the value; the last may be narrower and is padded by zeros."""
    outs = []
    for part in value.split(width, dim=-1):
        wide = part if part.shape[-1] == width else F.pad(part, (0, width - part.shape[-1]))
        outs.append(attention(wide)[..., : part.shape[-1]])
    if len(outs) == 1:
        return outs[0]
    return torch.cat(outs, dim=-1)


def _gathered(x_BHTK: Tensor, order: Tensor | None) -> Tensor:
    """[B, H, T, K] -> [P, H, K]: a view where nothing is left out and memory is [B, T, H, K], as projections leave
    it."""
    tokens = x_BHTK.transpose(1, 2).flatten(0, 1)
    if order is None:
        return tokens
    return tokens.index_select(0, order)
