"""Attention by ``torch.nn.attention.varlen``: FlashAttention over packed documents, in as many calls as the value has
key widths, however many documents there are.

Shape letters: H query heads, G key/value heads, K head size, P tokens of all documents, without padding.
"""

import functools
import importlib.util
import inspect
import logging
from typing import Any

import torch
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn.attention.varlen import varlen_attn

from tape_ds.attention.call import AttentionCall, has_flash
from tape_ds.attention.document_layout import PackedLayout
from tape_ds.attention.documents import attention_by_documents, whole_sequences
from tape_ds.attention.documents import why_not as why_not_documents

logger = logging.getLogger(__name__)

# torch 2.11 takes grouped heads without being told; later versions ask for it.
_ASKS_FOR_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
_WIDEST = 256
"""Columns of a head that its kernels take."""


def attention_by_varlen(call: AttentionCall) -> tuple[Tensor, ...]:
    """Compute a call for which :func:`why_not` returns None; a sequence without a layout is one document."""
    packed = whole_sequences(call) if call.layout is None else call.layout.packed
    if call.q.is_cuda and not torch.compiler.is_compiling():
        use_flash_attention_3()

    def attention(q_PHK: Tensor, k_PGK: Tensor, v_PGV: Tensor, packed: PackedLayout) -> Tensor:
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


@functools.cache
def use_flash_attention_3() -> None:
    """Let torch's FlashAttention operators run version 3 in this process, on a Hopper GPU with its package installed. A
    version that is already active stays."""
    has_package = importlib.util.find_spec("flash_attn_interface") is not None
    if not has_package or torch.cuda.get_device_capability() != (9, 0):
        return
    if (active := torch_attention.current_flash_attention_impl()) is None:
        active = "FA3"
        try:
            torch_attention.activate_flash_attention_impl(active)
        except (ImportError, RuntimeError) as error:  # built for another torch, or without a backward
            logger.warning("attention: flash_attn_interface is installed and torch cannot use it: %s", error)
            return
    logger.info("attention: torch runs FlashAttention by %s", active)


def why_not(call: AttentionCall) -> str | None:
    if (reason := why_not_documents(call)) is not None:
        return reason
    if not has_flash(call.q):
        return "needs a GPU of compute capability 8.0 or newer"
    width = call.q.shape[-1]
    return f"takes heads of a multiple of 8 up to {_WIDEST}, not {width}" if width % 8 or width > _WIDEST else None
