"""Attention by torch's ``scaled_dot_product_attention``: on any device, with any mask, without a T x S matrix.

Its fused kernels take one width for queries, keys and values. A wider value is answered by one call with queries and
keys padded by zeros, or by one call per K columns of the value, whichever is cheaper.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, X query heads of a group, K head size, V
value width.
"""

import functools
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from tape_ds.attention.call import (
    AttentionCall,
    allowed_keys,
    blank_padding,
    complete,
    fp32_kept,
    has_flash,
    joined,
)
from tape_ds.attention.document_layout import FEW_QUERIES, DocumentLayout
from tape_ds.attention.documents import attention_by_documents, by_key_width
from tape_ds.attention.plain import attention_by_reference, matrix_attention
from tape_ds.attention.score_bias import ContentBias, ScoreBias
from tape_ds.kernels import reference
from tape_ds.kernels.cpu_attention import cpu_attention

# One mask replaces a call for every document up to this number of [B, T, S] entries for each of them.
MASK_ENTRIES = 1 << 11
# Above this many entries no boolean mask is built in one piece.
BLOCKED_ENTRIES = 1 << 22
# Queries per call where a mask is needed; bounds it to B x QUERY_BLOCK x S.
QUERY_BLOCK = 512
# torch's CUDA flash backends run one width for q, k and v up to this many columns at full speed.
CUDA_PADDED_WIDTH = 128
# Scores [B, H, T, S] above this many (4 GiB in fp32) are never left to torch's unfused form unasked.
UNFUSED_SCORES = 1 << 30
# Scores with a bias, a soft cap or sinks are computed for a block of t queries at a time, so that B x H x t x S, or the
# bias's own intermediate results, stay below this (16 MiB in fp32: within a CPU's caches).
BIASED_ENTRIES = 1 << 22
# And for a share of the queries at most, so that a block stops at its last query's keys and half the work is saved, or
# for as many as a window has keys; but not for so few that calling dominates.
BIASED_SHARE = 8
BIASED_LEAST = 128
_HALVES = (torch.float16, torch.bfloat16)


def attention_by_sdpa(call: AttentionCall) -> tuple[Tensor, ...]:
    """Return every call of :func:`tape_ds.attention.attend.attend`; the way depends on masks and lengths."""
    # they take one width: joined values would be cut again
    if call.q.is_cuda and not call.changes_scores:
        return tuple(_of_one_value(call._replace(values=(value,))) for value in call.values)
    return joined(_of_one_value, call)


def _of_one_value(call: AttentionCall) -> Tensor:
    if not call.q.shape[2]:
        return attention_by_reference(call)
    if call.changes_scores:
        with fp32_kept(call.q):
            return biased_attention(call)
    # a static cache inside torch.compile: shapes must not depend on the offset
    if isinstance(call.offset, Tensor):
        return _masked(call)
    if call.layout is None:
        return _unmasked(call)
    if torch.compiler.is_compiling() or call.q.shape[2] <= FEW_QUERIES:
        return _masked(call)
    scores = call.q.shape[0] * call.q.shape[2] * call.k.shape[2]
    if scores <= MASK_ENTRIES * len(call.layout.packed.cu_keys):
        return _masked(call)
    # a document alone would count its own tokens only
    if call.window is not None and not call.layout.contiguous:
        return _masked(call)
    return _by_document(call, call.layout)


def _unmasked(call: AttentionCall) -> Tensor:
    """Compute one document without padding, with masks of at most QUERY_BLOCK queries."""
    queries = call.q.shape[2]
    if queries == 1:  # its window is all keys that are left
        return fused(call.q, call.k, call.v, None, False, call.scale)
    if call.offset == 0 and call.window is None:
        return fused(call.q, call.k, call.v, None, True, call.scale)
    blocks = []
    for start in range(0, queries, QUERY_BLOCK):
        part = call.part(start, min(start + QUERY_BLOCK, queries))
        blocks.append(fused(part.q, part.k, part.v, allowed_keys(part)[:, None], False, call.scale))
    return torch.cat(blocks, dim=2)


def _masked(call: AttentionCall) -> Tensor:
    call = blank_padding(call)
    queries = call.q.shape[2]
    parts = [call]
    outs = []
    if call.q.shape[0] * queries * call.k.shape[2] > BLOCKED_ENTRIES:
        starts = range(0, queries, QUERY_BLOCK)
        parts = [call.part(start, min(start + QUERY_BLOCK, queries)) for start in starts]
    for part in parts:
        allowed_BTS = allowed_keys(part)
        # A row without any key is a softmax over nothing. It sees everything (zeros, mostly) and is then dropped, so
        # that neither its output nor its gradient can be NaN on any of torch's backends.
        blind_B1T1 = ~allowed_BTS.any(dim=-1, keepdim=True)[:, None]
        mask = allowed_BTS[:, None] | blind_B1T1
        outs.append(
            fused(part.q, part.k, part.v, mask, False, part.scale).masked_fill(blind_B1T1, 0.0)
        )
    if len(outs) == 1:
        return outs[0]
    return torch.cat(outs, dim=2)


def _by_document(call: AttentionCall, layout: DocumentLayout) -> Tensor:
    """Call attention once a document; the lengths are read from the device once for all layers."""
    query_counts, key_counts = layout.cached("lengths", _lengths)

    def attention(q_PHK: Tensor, k_PGK: Tensor, v_PGV: Tensor) -> Tensor:
        outs = []
        pieces = zip(
            q_PHK.split(query_counts), k_PGK.split(key_counts), v_PGV.split(key_counts), strict=True
        )
        for q, k, v in pieces:
            if len(q):
                q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
                document = complete(q, k, (v,), scale=call.scale, window=call.window)
                outs.append(_unmasked(document)[0].transpose(0, 1))
        if outs:
            return torch.cat(outs)
        return q_PHK.new_zeros(0, q_PHK.shape[1], v_PGV.shape[-1])

    return attention_by_documents(call, layout.packed, attention, one_width=False)[0]


def _lengths(layout: DocumentLayout) -> tuple[list[int], list[int]]:
    queries, keys = (cu.diff().tolist() for cu in (layout.packed.cu_queries, layout.packed.cu_keys))
    return queries, keys


def biased_attention(call: AttentionCall) -> Tensor:
    """Compute scores with a bias, a soft cap or sinks for a block of queries at a time; autocast is off."""
    call, bias = blank_padding(call), call.bias
    # Cast once, not in every block; and their gradients add up in fp32.
    sinks = None if call.sinks is None else reference.upcast(call.sinks)
    call = call._replace(
        k=reference.upcast(call.k), values=(reference.upcast(call.v),), sinks=sinks
    )
    (batch, heads, queries, _), keys = call.q.shape, call.k.shape[2]
    most = max(BIASED_LEAST, -(-queries // BIASED_SHARE))
    if call.window is not None:
        most = max(BIASED_LEAST, call.window)
        keys = min(keys, call.window + most)
    inner = bias.inner * bias.query_marks.shape[0] if isinstance(bias, ScoreBias) else 1
    fitting = max(1, BIASED_ENTRIES // max(max(batch * heads, inner) * keys, 1))
    rows = min(fitting, most, queries)
    # Large results are computed again for the backward instead of kept; always where the bias follows from the scores,
    # since it keeps some eight numbers for each.
    recompute = (fitting < queries or isinstance(bias, ContentBias)) and torch.is_grad_enabled()
    if isinstance(bias, ScoreBias) and (fitting < queries or call.window is not None):
        # No layer keeps masks for the next: they are large, or those of a window's blocks, which look alike.
        call = call._replace(bias=bias._replace(made=None))
    blocks = []
    for start in range(0, queries, rows):
        part = call.part(start, min(start + rows, queries))
        if recompute:
            blocks.append(
                checkpoint(_biased_block, part, use_reentrant=False, preserve_rng_state=False)
            )
        else:
            blocks.append(_biased_block(part))
    if len(blocks) == 1:
        return blocks[0]
    return torch.cat(blocks, dim=2)


def _biased_block(call: AttentionCall) -> Tensor:
    q = call.q
    bias = call.bias
    made: dict[Hashable, Any] | None = None
    block: Hashable = None
    if isinstance(bias, ScoreBias) and bias.alike is not None and bias.made is not None:
        made = bias.made
        block = (bias.alike, call.offset, q.shape[2], call.k.shape[2], q.dtype, q.device)
        if block in made:
            return _with_mask(call, *made[block])

    allowed_B1TS = allowed_keys(call)[:, None]
    matrices = functools.partial(matrix_attention, q, call.k, call.v, allowed_B1TS, call.scale)
    if bias is None:
        return matrices(softcap=call.softcap, sinks_H=call.sinks)
    if isinstance(bias, ContentBias):
        return matrices(functools.partial(bias.block, q, allowed_B1TS))
    bias_BHTS = bias.of(slice(None), slice(None))
    # torch's fused kernels take a bias as a mask, but give it no gradient, and CUDA's need it in the query's dtype: in
    # bf16 it would be off by 4 at -1,000. Where it is learned or wider, the block goes through fp32 matrices.
    if (bias.learned and torch.is_grad_enabled()) or bias_BHTS.dtype != q.dtype:
        return matrices(bias_BHTS.expand(-1, q.shape[1], -1, -1))
    blind_B1T1: Tensor | None = None
    if call.layout is not None:
        blind_B1T1 = ~allowed_B1TS.any(dim=-1, keepdim=True)
        allowed_B1TS = allowed_B1TS | blind_B1T1
    mask = bias_BHTS.masked_fill(~allowed_B1TS, -torch.inf)
    if made is not None:
        made[block] = (mask, blind_B1T1)
    return _with_mask(call, mask, blind_B1T1)


def _with_mask(call: AttentionCall, mask: Tensor, blind_B1T1: Tensor | None) -> Tensor:
    """``blind_B1T1``: queries without a key, which see everything and are dropped; None: every query sees itself."""
    out = fused(call.q, call.k, call.v, mask, False, call.scale)
    if blind_B1T1 is None:
        return out
    return out.masked_fill(blind_B1T1, 0.0)


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """torch's fused attention for grouped queries and a value of any width. ``is_causal``: query t sees keys 0 .. t;
    only without a mask and with T = S."""
    on_cpu = q.device.type == "cpu"
    width = q.shape[-1]
    value_width = v.shape[-1]
    grouped = q.shape[1] != k.shape[1]
    if (
        (on_cpu or q.is_cuda)
        and torch.is_autocast_enabled(q.device.type)
        and q.dtype != torch.float64
    ):
        # as torch's would, but before anything asks for the dtype
        dtype = torch.get_autocast_dtype(q.device.type)
        q = q.to(dtype)
        k = k.to(dtype)
        v = v.to(dtype)
    # Short sequences of training have masks too; they keep torch's kernel and its rounding.
    decodes = mask is None or not torch.is_grad_enabled()
    if decodes and not is_causal and q.shape[2] <= FEW_QUERIES:
        return _few(q, k, v, mask, scale)
    if on_cpu and mask is None and value_width != width:
        return cpu_attention(q, k, v, is_causal, scale)
    if not on_cpu and value_width > max(width, CUDA_PADDED_WIDTH):
        return by_key_width(lambda part: fused(q, k, part, mask, is_causal, scale), v, width)
    # columns of zeros change neither the scores nor the sums
    if value_width != width:
        common = max(width, value_width)
        q, k, v = (
            x if x.shape[-1] == common else F.pad(x, (0, common - x.shape[-1])) for x in (q, k, v)
        )
    if grouped and not on_cpu and (mask is not None or q.dtype not in _HALVES or not has_flash(q)):
        return _by_head_of_group(q, k, v, mask, is_causal, scale)[..., :value_width]
    return _sdpa(q, k, v, mask, is_causal, scale, grouped)[..., :value_width]


def _few(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return a step of decoding: the queries of a group are treated as queries of one head, so that its keys and values
    are read once for all of them, and no key is copied, padded or repeated."""
    groups = k.shape[1]
    width = k.shape[-1]
    value_width = v.shape[-1]
    q_BGXK = q.unflatten(1, (groups, -1)).flatten(2, 3)
    if mask is not None and mask.shape[1] > 1:
        mask = mask.unflatten(1, (groups, -1)).flatten(2, 3)
    elif mask is not None:
        mask = mask.unsqueeze(2).expand(-1, -1, q.shape[1] // groups, -1, -1).flatten(2, 3)

    if q.device.type != "cpu" and q.dtype in _HALVES:
        out_BGXV = by_key_width(lambda part: _sdpa(q_BGXK, k, part, mask, False, scale), v, width)
    else:
        # Plain matrices are as exact as everything around them: products in the inputs' own dtype, the softmax in fp32
        # at least. Keys are on the left: their rows are read in place.
        scores_BGXS = reference.upcast((k[..., :value_width] @ q_BGXK[..., :value_width].mT).mT)
        if width > value_width:
            # Products of columns that an encoding added may be large and differ by little (fox): bf16 would round that.
            added_BGSE = reference.upcast(k[..., value_width:])
            reads_BGXE = reference.upcast(q_BGXK[..., value_width:])
            scores_BGXS = scores_BGXS + (added_BGSE @ reads_BGXE.mT).mT
        scores_BGXS = scores_BGXS * scale
        if mask is not None and mask.dtype == torch.bool:
            scores_BGXS = scores_BGXS.masked_fill(~mask, -torch.inf)
        elif mask is not None:
            scores_BGXS = scores_BGXS + mask
        out_BGXV = scores_BGXS.softmax(dim=-1).to(v.dtype) @ v
    return out_BGXV.unflatten(2, (-1, q.shape[2])).flatten(1, 2)


def _by_head_of_group(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """Return one call for the first query heads of all groups, one for the second, ...: only FlashAttention's kernel
    takes grouped queries on CUDA (no mask, 16 bits), and torch would fall back to matrices."""
    q_BGXTK = q.unflatten(1, (k.shape[1], -1))
    masks: list[Tensor | None] = [mask] * q_BGXTK.shape[2]
    if mask is not None and mask.shape[1] > 1:
        masks = list(mask.unflatten(1, (k.shape[1], -1)).unbind(2))
    outs = [
        _sdpa(q_BGTK, k, v, part, is_causal, scale)
        for q_BGTK, part in zip(q_BGXTK.unbind(2), masks, strict=True)
    ]
    return torch.stack(outs, dim=2).flatten(1, 2)


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    grouped: bool = False,
) -> Tensor:
    # Not checked in a compiled graph: the check would break it.
    checks = q.device.type == "cuda" and not torch.compiler.is_compiling()
    if checks and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] > UNFUSED_SCORES:
        refuse_unfused(q, k, v, mask, is_causal, grouped)
    # cuDNN builds a graph for every new length, tens of milliseconds each: for training at one length, not for texts of
    # any length or a cache that grows by a token a call.
    order: AbstractContextManager[None] = nullcontext()
    if q.is_cuda and not torch.is_grad_enabled():
        cuda = torch.backends.cuda
        enabled = {
            SDPBackend.FLASH_ATTENTION: cuda.flash_sdp_enabled(),
            SDPBackend.EFFICIENT_ATTENTION: cuda.mem_efficient_sdp_enabled(),
            SDPBackend.CUDNN_ATTENTION: cuda.cudnn_sdp_enabled(),
            SDPBackend.MATH: cuda.math_sdp_enabled(),
        }
        order = sdpa_kernel([kernel for kernel, on in enabled.items() if on], set_priority=True)
    with order:
        sdpa = functools.partial(
            F.scaled_dot_product_attention, attn_mask=mask, is_causal=is_causal, scale=scale
        )
        if grouped:
            return sdpa(q, k, v, enable_gqa=True)
        return sdpa(q, k, v)


def refuse_unfused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, grouped: bool
) -> None:
    """Raise where torch would compute a long CUDA input by its unfused form, a [B, H, T, S] matrix, without a word."""
    cuda = torch.backends.cuda
    asked = cuda.SDPAParams(q, k, v, mask, 0.0, is_causal, grouped)
    kernels = (
        cuda.can_use_flash_attention,
        cuda.can_use_cudnn_attention,
        cuda.can_use_efficient_attention,
    )
    if any(can(asked) for can in kernels):
        return
    raise ValueError(
        f"attention over {q.shape[2]} queries and {k.shape[2]} keys: none of torch's fused kernels takes "
        f"{str(q.dtype).removeprefix('torch.')} with heads of {q.shape[-1]}, and without them {q.shape[1]} x "
        f"{q.shape[2]} x {k.shape[2]} scores would be held at once; load the model in bf16, enable torch's fused "
        "kernels, or ask for that matrix with attention_backend: reference"
    )
