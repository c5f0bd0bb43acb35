"""Attention by ``torch.nn.attention.varlen``: FlashAttention over packed documents, in as many calls as the value has
key widths, however many documents there are.

Shape letters: H query heads, G key/value heads, K head size, P tokens of all documents, without padding.
"""

import inspect
from typing import Any

from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from tape_ds.model.attention.borders import Packed
from tape_ds.model.attention.call import AttentionCall, has_flash
from tape_ds.model.attention.documents import attention_by_documents, whole_sequences
from tape_ds.model.attention.documents import why_not as why_not_documents

# torch 2.11 takes grouped heads without being told; later versions ask for it.
_ASKS_FOR_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
_WIDEST = 256
"""Columns of a head that its kernels take."""


def attention_by_varlen(call: AttentionCall) -> tuple[Tensor, ...]:
    """Return a call for which :func:`why_not` gives None; a sequence without borders is one document."""
    packed = whole_sequences(call) if call.borders is None else call.borders.packed

    def attention(q_PHK: Tensor, k_PGK: Tensor, v_PGV: Tensor, packed: Packed) -> Tensor:
        grouped: dict[str, Any] = {"enable_gqa": q_PHK.shape[1] != k_PGK.shape[1]} if _ASKS_FOR_GROUPS else {}
        out_PHK = varlen_attn(
            q_PHK,
            k_PGK,
            v_PGV,
            packed.cu_queries,
            packed.cu_keys,
            packed.longest_queries,
            packed.longest_keys,
            scale=call.scale,
            window_size=(-1 if call.window is None else call.window - 1, 0),
            **grouped,
        )
        assert isinstance(out_PHK, Tensor)  # nobody asked for the log-sum-exp
        return out_PHK

    return attention_by_documents(call, packed, attention, one_width=True)


def why_not(call: AttentionCall) -> str | None:
    """Why its kernels do not run here, or do not take this call."""
    if (reason := why_not_documents(call)) is not None:
        return reason
    if not has_flash(call.q):
        return "needs a GPU of compute capability 8.0 or newer"
    width = call.q.shape[-1]
    return f"takes heads of a multiple of 8 up to {_WIDEST}, not {width}" if width % 8 or width > _WIDEST else None
