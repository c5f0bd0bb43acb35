"""Attention by torch's ``scaled_dot_product_attention``: on any device, with any mask, without a T x S matrix.

Its fused kernels want one width for queries, keys and values. A wider value is answered by one call with queries and
keys padded by zeros, or by one call per K columns of the value, whichever is cheaper.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, X query heads of a group, K head size, V
value width.
"""

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from tape_ds.kernels.cpu_attention import cpu_attention
from tape_ds.model.attention.biased import biased_attention
from tape_ds.model.attention.call import Call, allowed_keys, blank_padding, fp32_kept
from tape_ds.model.attention.plain import attention_by_reference, few_queries

# Above this many [B, T, S] entries no boolean mask is built in one piece.
MASK_ENTRIES = 1 << 22
# Queries per call where a mask is needed; bounds it to B x QUERY_BLOCK x S.
QUERY_BLOCK = 512
# torch's CUDA flash backends run one width for q, k and v up to this many columns at full speed.
CUDA_PADDED_WIDTH = 128
# Up to this many queries are a step of decoding, whose few scores are cheaper as a matrix than padded keys are.
FEW_QUERIES = 16
# Scores [B, H, T, S] above this many (4 GiB in fp32) are never left to torch's unfused form unasked.
UNFUSED_SCORES = 1 << 30
_HALVES = (torch.float16, torch.bfloat16)


def attention_by_sdpa(call: Call) -> Tensor:
    """Every call of :func:`tape_ds.model.attention.attend`; the way depends on masks and lengths.

    Raises:
        ValueError: on CUDA and outside compiled graphs, a long input that none of torch's fused kernels takes.
    """
    if not call.q.shape[2]:
        return attention_by_reference(call)
    if call.bias is not None:
        with fp32_kept(call.q):
            return biased_attention(call, call.bias, fused)
    if isinstance(call.offset, Tensor):  # a static cache inside torch.compile: shapes must not depend on the offset
        return _masked(call)
    if call.document_ids is None:
        return _unmasked(call.q, call.k, call.v, call.causal, call.offset, call.scale)
    few = call.q.shape[0] * call.q.shape[2] * call.k.shape[2] <= MASK_ENTRIES
    return _masked(call) if few or torch.compiler.is_compiling() else _by_document(call)


def _unmasked(q: Tensor, k: Tensor, v: Tensor, causal: bool, offset: int, scale: float) -> Tensor:
    """One document, no padding: no mask larger than QUERY_BLOCK x S."""
    queries = q.shape[2]
    if not causal or queries == 1:
        return fused(q, k, v, None, False, scale)
    if offset == 0:
        return fused(q, k, v, None, True, scale)
    blocks = []
    for start in range(0, queries, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, queries)
        seen = offset + stop
        mask_1TS = allowed_keys(stop - start, seen, True, None, offset + start, q.device)
        blocks.append(fused(q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen], mask_1TS[:, None], False, scale))
    return torch.cat(blocks, dim=2)


def _masked(call: Call) -> Tensor:
    q, k, v, causal, document_ids, offset, scale, _ = blank_padding(call)
    queries, keys = q.shape[2], k.shape[2]
    rows = queries if q.shape[0] * queries * keys <= MASK_ENTRIES else QUERY_BLOCK
    blocks = []
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        allowed_B1TS = allowed_keys(stop - start, keys, causal, document_ids, offset + start, q.device)[:, None]
        # A row without any key is a softmax over nothing. It sees everything (zeros, mostly) and is then dropped, so
        # that neither its output nor its gradient can be NaN on any of torch's backends.
        blind_B1T1 = ~allowed_B1TS.any(dim=-1, keepdim=True)
        out = fused(q[:, :, start:stop], k, v, allowed_B1TS | blind_B1T1, False, scale)
        blocks.append(out.masked_fill(blind_B1T1, 0.0))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)


def _by_document(call: Call) -> Tensor:
    """Every document of every row on its own: work and memory follow the documents' lengths, not T x S."""
    q, k, v, causal, document_ids, offset, scale, _ = call
    assert isinstance(offset, int) and document_ids is not None
    batch, heads, queries, _ = q.shape
    out = q.new_zeros(batch, heads, queries, v.shape[-1])
    ids_BS = document_ids.cpu()
    for row in range(batch):
        for document in ids_BS[row, offset : offset + queries].unique().tolist():
            if document < 0:
                continue
            key_places = (ids_BS[row] == document).nonzero()[:, 0]
            query_places = key_places[(key_places >= offset) & (key_places < offset + queries)] - offset
            key_at, query_at = _as_slice(key_places, k.device), _as_slice(query_places, q.device)
            past = len(key_places) - len(query_places)
            own_q, own_k, own_v = (x[row : row + 1, :, at] for x, at in ((q, query_at), (k, key_at), (v, key_at)))
            out[row, :, query_at] = _unmasked(own_q, own_k, own_v, causal, past, scale)[0]
    return out


def _as_slice(places: Tensor, device: torch.device) -> slice | Tensor:
    """Sorted places as a slice where they are consecutive (no copy), else as an index."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return slice(first, last + 1)
    return places.to(device)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """torch's fused attention for grouped queries and a value of any width.

    Args:
        q, k, v: [B, H, T, K], [B, G, S, K], [B, G, S, V].
        mask: bool or floating [B or 1, 1 or H, T, S], or None.
        is_causal: query t sees keys 0 .. t; only without a mask and with T = S.
        scale: factor on the scores.
    """
    on_cpu, width, value_width = q.device.type == "cpu", q.shape[-1], v.shape[-1]
    grouped = q.shape[1] != k.shape[1]
    if (on_cpu or q.is_cuda) and torch.is_autocast_enabled(q.device.type) and q.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(q.device.type)  # as torch's would, but before anything asks for the dtype
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if mask is None and not is_causal and q.shape[2] <= FEW_QUERIES:
        return _few(q, k, v, scale)
    if on_cpu and mask is None and value_width != width:
        return cpu_attention(q, k, v, is_causal, scale)
    if value_width > width and (q.shape[2] <= FEW_QUERIES or (not on_cpu and value_width > CUDA_PADDED_WIDTH)):
        return torch.cat([fused(q, k, part, mask, is_causal, scale) for part in v.split(width, dim=-1)], dim=-1)
    if value_width != width:  # columns of zeros change neither the scores nor the sums
        common = max(width, value_width)
        q, k, v = (x if x.shape[-1] == common else F.pad(x, (0, common - x.shape[-1])) for x in (q, k, v))
    if grouped and not on_cpu and (mask is not None or q.dtype not in _HALVES):
        return _by_head_of_group(q, k, v, mask, is_causal, scale)[..., :value_width]
    return _sdpa(q, k, v, mask, is_causal, scale, grouped)[..., :value_width]


def _few(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """All queries see all keys, as in a step of decoding: plain matrices where they are as exact as everything around
    them, else torch's kernel with a group's queries as so many queries of one head."""
    if q.device.type == "cpu" or q.dtype not in _HALVES:
        return few_queries(q, k, v, scale)
    groups, width = k.shape[1], k.shape[-1]
    q_BGXK = q.unflatten(1, (groups, -1)).flatten(2, 3)
    parts = [_sdpa(q_BGXK, k, _as_wide_as(width, part), None, False, scale) for part in v.split(width, dim=-1)]
    out_BGXV = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))[..., : v.shape[-1]]
    return out_BGXV.unflatten(2, (-1, q.shape[2])).flatten(1, 2)


def _as_wide_as(width: int, x: Tensor) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _by_head_of_group(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """One call for the first query heads of all groups, one for the second, ...: with a mask, or in fp32, torch's CUDA
    kernels take no grouped queries, and it would fall back to matrices."""
    q_BGXTK = q.unflatten(1, (k.shape[1], -1))
    masks: list[Tensor | None] = [mask] * q_BGXTK.shape[2]
    if mask is not None and mask.shape[1] > 1:
        masks = list(mask.unflatten(1, (k.shape[1], -1)).unbind(2))
    outs = [_sdpa(q_BGTK, k, v, own, is_causal, scale) for q_BGTK, own in zip(q_BGXTK.unbind(2), masks, strict=True)]
    return torch.stack(outs, dim=2).flatten(1, 2)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float, grouped: bool = False
) -> Tensor:
    # A compiled graph is not asked: the question itself would break it.
    asks = q.device.type == "cuda" and not torch.compiler.is_compiling()
    if asks and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] > UNFUSED_SCORES:
        refuse_unfused(q, k, v, mask, is_causal, grouped)
    sdpa = functools.partial(F.scaled_dot_product_attention, attn_mask=mask, is_causal=is_causal, scale=scale)
    return sdpa(q, k, v, enable_gqa=True) if grouped else sdpa(q, k, v)


def refuse_unfused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, grouped: bool) -> None:
    """Raise where torch would compute a long CUDA input by its unfused form, a [B, H, T, S] matrix, without a word.

    Raises:
        ValueError: none of torch's fused kernels takes this input.
    """
    cuda = torch.backends.cuda
    asked = cuda.SDPAParams(q, k, v, mask, 0.0, is_causal, grouped)
    kernels = (cuda.can_use_flash_attention, cuda.can_use_cudnn_attention, cuda.can_use_efficient_attention)
    if any(can(asked) for can in kernels):
        return
    raise ValueError(
        f"attention over {q.shape[2]} queries and {k.shape[2]} keys: none of torch's fused kernels takes "
        f"{str(q.dtype).removeprefix('torch.')} with heads of {q.shape[-1]}, and without them {q.shape[1]} x "
        f"{q.shape[2]} x {k.shape[2]} scores would be held at once; load the model in bf16, enable torch's fused "
        "kernels, or ask for that matrix with attention_backend: reference"
    )
