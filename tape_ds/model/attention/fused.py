"""Attention by this project's Triton kernels: scores computed once for the value and the position state beside it.

A value no wider than the key needs no kernel of ours, except for a step of decoding: torch's own answers it, so that
the backend ``triton`` serves every layer of a model.
"""

import torch
from torch import Tensor

from tape_ds.kernels import decode_attention, tape_attention
from tape_ds.model.attention.call import Call
from tape_ds.model.attention.sdpa import attention_by_sdpa


def attention_by_triton(call: Call) -> Tensor:
    """A call for which :func:`why_not` gives None."""
    q, k, v, causal, document_ids, offset, scale, _ = call
    assert isinstance(offset, int)
    if _decodes(call):
        return decode_attention.decode_attention(q, k, v, offset=offset, document_ids=document_ids, scale=scale)
    if v.shape[-1] <= q.shape[-1]:
        return attention_by_sdpa(call)
    return tape_attention.tape_attention(q, k, v, causal=causal, offset=offset, document_ids=document_ids, scale=scale)


def why_not(call: Call) -> str | None:
    """Why the kernels cannot compute this call."""
    if _decodes(call) or call.v.shape[-1] <= call.q.shape[-1]:
        return None
    if not call.scale > 0:
        return f"needs a scale above 0, not {call.scale}"
    return tape_attention.why_not(call.q, call.k, call.v)


def _decodes(call: Call) -> bool:
    """Whether this is a step of decoding: few queries, and nobody asks for a gradient."""
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v))
    return call.causal and call.scale > 0 and not trains and decode_attention.why_not(call.q, call.k, call.v) is None
