"""Attention by this project's Triton kernels: scores computed once for the value and the position state.

A value no wider than the key needs no kernel of ours, except for a step of decoding: torch's own answer it (``varlen``
where documents would be a call each), so that the backend ``triton`` serves every layer of a model.
"""

import torch
from torch import Tensor

from tape_ds.attention.call import AttentionCall
from tape_ds.attention.document_layout import FEW_QUERIES
from tape_ds.attention.flash import attention_by_varlen, why_not_varlen
from tape_ds.attention.sdpa import attention_by_sdpa
from tape_ds.kernels import decode_attention, tape_attention


def attention_by_triton(call: AttentionCall) -> tuple[Tensor, ...]:
    assert isinstance(call.offset, int)
    halves = _halves(call)
    if _decodes(call):
        outs = decode_attention.decode_attention(
            call.q,
            call.k,
            *halves,
            offset=call.offset,
            document_ids=call.document_ids,
            scale=call.scale,
        )
    elif len(halves) == 1:
        packed = (
            call.q.device.type != "cpu"
            and call.layout is not None
            and call.q.shape[2] > FEW_QUERIES
        )
        if packed and why_not_varlen(call) is None:
            return attention_by_varlen(call)
        return attention_by_sdpa(call)
    else:
        documents = None
        if call.layout is not None:
            documents = call.layout.cached(
                "kernels", lambda layout: tape_attention.document_borders(layout.ids_BS)
            )
        outs = tape_attention.tape_attention(
            call.q, call.k, *halves, offset=call.offset, document_ids=documents, scale=call.scale
        )
    parts = [out for out in outs if out is not None]
    if len(parts) == len(call.values):
        return tuple(parts)
    return (torch.cat(parts, dim=-1),)


def why_not(call: AttentionCall) -> str | None:
    halves = _halves(call)
    width = call.q.shape[-1]
    if _decodes(call) or (len(halves) == 1 and halves[0].shape[-1] <= width):
        return None
    if not call.scale > 0:
        return f"needs a scale above 0, not {call.scale}"
    if [half.shape[-1] for half in halves] != [width, width]:
        columns = sum(half.shape[-1] for half in halves)
        return f"needs a value as wide as the key or twice, not {columns} for {width}"
    return tape_attention.why_not(call.q, call.k, *halves)


def _halves(call: AttentionCall) -> tuple[Tensor, ...]:
    """Return the value and the position state, if any: two tensors, or views of one."""
    if len(call.values) == 1:
        return call.v.split(call.q.shape[-1], dim=-1)
    return call.values


def _decodes(call: AttentionCall) -> bool:
    halves = _halves(call)
    if call.trains or not call.scale > 0 or len(halves) > 2:
        return False
    return decode_attention.why_not(call.q, call.k, *halves) is None
