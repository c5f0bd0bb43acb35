"""Attention by the package flash-attn, version 2, 3 or 4, where it is installed: one call per K columns of the value.

Its kernels want one width for q, k and v, so the scores of a wide value are computed more than once. Documents go
through its varlen functions: tokens are gathered document by document, padding left out, and put back afterwards.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width, N tokens of all
documents together.
"""

import functools
import importlib
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tape_ds.model.attention.call import Call

# Newest first: 4 (CuTe), 3 (Hopper), 2.
FLASH_MODULES = ("flash_attn.cute", "flash_attn_interface", "flash_attn")


def attention_by_flash(call: Call) -> Tensor:
    """Any causal or full call without a bias, in fp16 or bf16."""
    if call.document_ids is None:
        out_BTHV = _by_parts(flash_functions().dense, call, *(x.transpose(1, 2) for x in (call.q, call.k, call.v)))
        return out_BTHV.transpose(1, 2)
    return _by_document(call, call.document_ids)


class Functions(NamedTuple):
    """The two functions of a flash-attn version that are used here."""

    dense: Any
    """(q [B, T, H, K], k, v, *, softmax_scale, causal)."""
    varlen: Any
    """(q [N, H, K], k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal)."""


@functools.cache
def flash_functions() -> Functions:
    """Those of the newest installed version.

    Raises:
        ModuleNotFoundError: none is installed.
    """
    for name in FLASH_MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        return Functions(module.flash_attn_func, module.flash_attn_varlen_func)
    raise ModuleNotFoundError("flash-attn is not installed: pip install --no-build-isolation flash-attn")


def _by_parts(function: Any, call: Call, q: Tensor, k: Tensor, v: Tensor, **lengths: Any) -> Tensor:
    """One call for every K columns of the value; the last may be narrower and is padded."""
    width = q.shape[-1]
    outs = []
    for part in v.split(width, dim=-1):
        wide = part if part.shape[-1] == width else F.pad(part, (0, width - part.shape[-1]))
        out = function(q, k, wide, softmax_scale=call.scale, causal=call.causal, **lengths)
        out = out[0] if isinstance(out, tuple) else out  # versions 3 and 4 may return the log-sum-exp too
        outs.append(out[..., : part.shape[-1]])
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)


def _by_document(call: Call, document_ids: Tensor) -> Tensor:
    q, k, v, offset = call.q, call.k, call.v, call.offset
    assert isinstance(offset, int)
    batch, _, queries, _ = q.shape
    query_ids_BT = document_ids[:, offset : offset + queries]
    query_at, query_counts = _gathered(query_ids_BT, document_ids)
    key_at, key_counts = _gathered(document_ids, document_ids)
    own_q, own_k, own_v = (x.transpose(1, 2).flatten(0, 1)[at] for x, at in ((q, query_at), (k, key_at), (v, key_at)))
    out_NHV = _by_parts(
        flash_functions().varlen,
        call,
        own_q,
        own_k,
        own_v,
        cu_seqlens_q=_borders(query_counts),
        cu_seqlens_k=_borders(key_counts),
        max_seqlen_q=int(query_counts.max()) if len(query_counts) else 0,
        max_seqlen_k=int(key_counts.max()) if len(key_counts) else 0,
    )
    out = out_NHV.new_zeros(batch * queries, *out_NHV.shape[1:]).index_copy(0, query_at, out_NHV)
    return out.unflatten(0, (batch, queries)).transpose(1, 2)


def _gathered(ids_BT: Tensor, document_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where the tokens of ``ids_BT`` stand in their flattened [B * T], document by document of ``document_ids`` and in
    their order within each, padding left out; and how many of them every document has (0 for one without any)."""
    rows = torch.arange(len(ids_BT), device=ids_BT.device)[:, None]
    span = int(document_ids.max()) + 1 if document_ids.numel() else 1

    def keys(ids: Tensor) -> Tensor:
        return torch.where(ids >= 0, rows * max(span, 1) + ids, -1).flatten()

    every = torch.unique(keys(document_ids))
    every = every[every >= 0]
    own = keys(ids_BT)
    order = torch.argsort(own, stable=True)
    order = order[own[order] >= 0]
    counts = torch.bincount(torch.searchsorted(every, own[order]), minlength=len(every))
    return order, counts


def _borders(counts: Tensor) -> Tensor:
    """``cu_seqlens``: int32 [documents + 1]."""
    return F.pad(counts.cumsum(0), (1, 0)).int()
