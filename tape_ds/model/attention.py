"""One attention function for every positional encoding: causal softmax whose value may be wider than its key.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width.

``attend`` is the only place that turns ``document_ids`` into masks. Position ids are never read here: a jump in them
(PoSE) is not a border, and a border is only what the collator says it is.
"""

import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tape_ds.errors import did_you_mean
from tape_ds.kernels import reference
from tape_ds.model.flex import flex_attend
from tape_ds.model.score_bias import ScoreBias

logger = logging.getLogger(__name__)

# Above this many [B, T, S] entries a boolean mask is not built: documents are attended one by one instead.
MASK_ENTRIES = 1 << 22
# Queries per call when a chunk continues a cache; bounds its mask to QUERY_BLOCK x S.
QUERY_BLOCK = 512
# Scores with a bias are computed for so few queries t at a time that B x H x t x S, or what the bias holds on its way
# to that, stays below this (16 MiB in fp32: within a CPU's caches).
BIASED_ENTRIES = 1 << 22
# And for a share of the queries at most, so that a block stops at its last query's keys and half the work is saved; but
# not for so few that calling dominates.
BIASED_SHARE, BIASED_LEAST = 8, 128
# With fewer queries than one block of FlexAttention its kernel gains nothing, and every step of decoding, one key more
# than the last, would compile it anew.
FLEX_QUERIES = 128
# torch's CUDA flash backends run one width for q, k and v up to this many columns at full speed.
CUDA_PADDED_WIDTH = 128


def attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSV: Tensor,
    *,
    causal: bool = True,
    document_ids: Tensor | None = None,
    offset: int | Tensor | None = None,
    scale: float | None = None,
    score_bias: ScoreBias | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attention of T queries over S keys.

    Args:
        q_BHTK: queries; H is a multiple of G (grouped-query attention, keys and values are not repeated by the caller).
        k_BGSK: keys.
        v_BGSV: values, of any width V >= 1.
        causal: query t sees the keys up to its own place ``offset + t``.
        document_ids: integers [B, S]: a query sees only keys of its own document; -1 marks padding, which sees
            nothing and is seen by nobody, whatever it contains (NaN included). Queries stand at
            ``offset .. offset + T`` of the key axis. None: one document, no padding.
        offset: place of the first query on the key axis; default S - T. Keys behind the last query (the unused end of
            a static cache) are never seen by a causal query.
        scale: factor on the scores; default K ** -0.5.
        score_bias: what is added to the scaled scores; never held for all queries at once.
        backend: "auto" or a name of :func:`available`.

    Returns:
        [B, H, T, V]; 0 for a query that may see no key.

    Raises:
        ValueError: unknown backend, one that this device or bias does not have, or queries that stand outside the key
            axis.
    """
    call = _complete(q_BHTK, k_BGSK, v_BGSV, causal, document_ids, offset, scale, score_bias)
    elementwise = score_bias is None or score_bias.element is not None
    few = score_bias is not None and call.q.shape[2] < FLEX_QUERIES
    return _BACKENDS[choose(backend, call.q.device.type, score_bias is not None, elementwise, few)](call)


def available() -> list[str]:
    """Names of the attention backends, without "auto"."""
    return sorted(_BACKENDS)


@functools.cache
def choose(
    backend: str, device_type: str, biased: bool = False, elementwise: bool = True, few_queries: bool = False
) -> str:
    """The backend that ``backend`` stands for on this kind of device; says once what was picked and why.

    Args:
        backend: "auto" or a name.
        device_type: "cpu", "cuda".
        biased: whether something is added to the scores.
        elementwise: whether that is a function of one query's and one key's number.
        few_queries: whether this is a step of decoding rather than a text.
    """
    if backend != "auto":
        if backend not in _BACKENDS:
            raise ValueError(f"attention backend {backend!r} is unknown; {did_you_mean(backend, ['auto', *_BACKENDS])}")
        if backend == "flex" and (device_type != "cuda" or not elementwise):
            lacking = "needs a CUDA device" if device_type != "cuda" else "cannot compute this encoding's bias"
            raise ValueError(f"attention backend 'flex' {lacking}; choose auto or sdpa")
        logger.info("attention: %s (asked for)", backend)
        return backend
    if biased and device_type == "cuda" and elementwise and not few_queries:
        logger.info("attention: flex (auto on cuda: the encoding's bias inside the kernel, no T x S matrix)")
        return "flex"
    if biased:
        logger.info("attention: sdpa (auto on %s: the encoding's bias for a block of queries at a time)", device_type)
        return "sdpa"
    width = "queries and keys padded to the value's width" if device_type == "cpu" else "one call per K value columns"
    logger.info(
        "attention: sdpa (auto on %s: torch's fused kernels, no T x S matrix; a wide value by %s)", device_type, width
    )
    return "sdpa"


def allowed_keys(
    queries: int, keys: int, causal: bool, document_ids: Tensor | None, offset: int | Tensor, device: torch.device
) -> Tensor:
    """The mask that ``attend`` stands for: bool [B or 1, T, S], True where a query may see a key."""
    query_places = torch.arange(queries, device=device) + offset
    key_places = torch.arange(keys, device=device)
    if causal:
        allowed_1TS = (key_places[None, :] <= query_places[:, None])[None]
    else:
        allowed_1TS = torch.ones(1, queries, keys, dtype=torch.bool, device=device)
    if document_ids is None:
        return allowed_1TS
    query_ids_BT = document_ids.index_select(1, query_places)
    same_BTS = (query_ids_BT[:, :, None] == document_ids[:, None, :]) & (document_ids >= 0)[:, None, :]
    return allowed_1TS & same_BTS


def attend_with_weights(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSV: Tensor,
    *,
    causal: bool = True,
    document_ids: Tensor | None = None,
    offset: int | Tensor | None = None,
    scale: float | None = None,
    score_bias: ScoreBias | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`attend` by the ``reference`` backend, together with its weights [B, H, T, S] (fp32)."""
    return _reference_with_weights(_complete(q_BHTK, k_BGSK, v_BGSV, causal, document_ids, offset, scale, score_bias))


class _Call(NamedTuple):
    """The arguments of :func:`attend`, defaults filled in."""

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    document_ids: Tensor | None
    offset: int | Tensor
    scale: float
    bias: ScoreBias | None


def _complete(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    document_ids: Tensor | None,
    offset: int | Tensor | None,
    scale: float | None,
    bias: ScoreBias | None,
) -> _Call:
    """Fill the defaults in, and drop the keys behind the last query: they play no part."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    offset = k.shape[2] - q.shape[2] if offset is None else offset
    if isinstance(offset, Tensor):
        return _Call(q, k, v, causal, document_ids, offset, scale, bias)
    seen = offset + q.shape[2]
    if offset < 0 or seen > k.shape[2]:
        raise ValueError(f"{q.shape[2]} queries at offset {offset} do not fit on an axis of {k.shape[2]} keys")
    if causal:
        k, v = k[:, :, :seen], v[:, :, :seen]
        document_ids = None if document_ids is None else document_ids[:, :seen]
        bias = None if bias is None else bias.until(seen)
    return _Call(q, k, v, causal, document_ids, offset, scale, bias)


def _reference(call: _Call) -> Tensor:
    return _reference_with_weights(call)[0]


def _reference_with_weights(call: _Call) -> tuple[Tensor, Tensor]:
    q, k, v = _blank_padding(call.q, call.k, call.v, call.document_ids, call.offset)
    allowed_BTS = allowed_keys(q.shape[2], k.shape[2], call.causal, call.document_ids, call.offset, q.device)
    with _fp32_kept(q):
        bias_BHTS = None if call.bias is None else call.bias.of(slice(None), slice(None))
        return reference.attention(q, k, v, allowed_BTS, call.scale, bias_BHTS)


def _fp32_kept(q: Tensor) -> torch.autocast:
    """Autocast would turn matrix products that are fp32 on purpose back into bf16."""
    return torch.autocast(q.device.type, enabled=False)


def _blank_padding(
    q: Tensor, k: Tensor, v: Tensor, document_ids: Tensor | None, offset: int | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Zero whatever padding holds: a weight of 0 times NaN would still be NaN, forward and backward."""
    if document_ids is None:
        return q, k, v
    padding_B1S1 = (document_ids < 0)[:, None, :, None]
    query_places = torch.arange(q.shape[2], device=q.device) + offset
    q = q.masked_fill(padding_B1S1.index_select(2, query_places), 0.0)
    return q, k.masked_fill(padding_B1S1, 0.0), v.masked_fill(padding_B1S1, 0.0)


def _sdpa(call: _Call) -> Tensor:
    q, k, v, causal, document_ids, offset, scale, bias = call
    if bias is not None:
        with _fp32_kept(q):
            return _sdpa_biased(call, bias)
    if isinstance(offset, Tensor):  # a static cache inside torch.compile: shapes must not depend on the offset
        return _sdpa_masked(q, k, v, causal, document_ids, offset, scale)
    if document_ids is None:
        return _sdpa_plain(q, k, v, causal, offset, scale)
    if q.shape[0] * q.shape[2] * k.shape[2] <= MASK_ENTRIES:
        return _sdpa_masked(q, k, v, causal, document_ids, offset, scale)
    return _sdpa_by_document(q, k, v, causal, document_ids, offset, scale)


def _sdpa_plain(q: Tensor, k: Tensor, v: Tensor, causal: bool, offset: int, scale: float) -> Tensor:
    """One document, no padding: no mask larger than QUERY_BLOCK x S."""
    queries = q.shape[2]
    if not causal:
        return _sdpa_call(q, k, v, None, False, scale)
    if offset == 0:
        return _sdpa_call(q, k, v, None, True, scale)
    if queries == 1:
        return _sdpa_call(q, k, v, None, False, scale)
    blocks = []
    for start in range(0, queries, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, queries)
        seen = offset + stop
        mask_1TS = allowed_keys(stop - start, seen, True, None, offset + start, q.device)
        blocks.append(_sdpa_call(q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen], mask_1TS[:, None], False, scale))
    return torch.cat(blocks, dim=2)


def _sdpa_masked(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, document_ids: Tensor | None, offset: int | Tensor, scale: float
) -> Tensor:
    q, k, v = _blank_padding(q, k, v, document_ids, offset)
    allowed_B1TS = allowed_keys(q.shape[2], k.shape[2], causal, document_ids, offset, q.device)[:, None]
    # A row without any key is a softmax over nothing. It sees everything (zeros, mostly) and is then dropped, so that
    # neither its output nor its gradient can be NaN on any of torch's backends.
    blind_B1T1 = ~allowed_B1TS.any(dim=-1, keepdim=True)
    out = _sdpa_call(q, k, v, allowed_B1TS | blind_B1T1, False, scale)
    return out.masked_fill(blind_B1T1, 0.0)


def _sdpa_by_document(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, document_ids: Tensor, offset: int, scale: float
) -> Tensor:
    """Every document of every row on its own: work and memory follow the documents' lengths, not T x S."""
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
            out[row, :, query_at] = _sdpa_plain(own_q, own_k, own_v, causal, past, scale)[0]
    return out


def _sdpa_biased(call: _Call, bias: ScoreBias) -> Tensor:
    """A block of queries at a time, each with its block of the bias; where the whole would be large, the blocks are
    computed again for the backward instead of kept."""
    q, k, v = _blank_padding(call.q, call.k, call.v, call.document_ids, call.offset)
    k, v = reference.upcast(k), reference.upcast(v)  # once; and their gradients, a sum over blocks, add up in fp32
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    entries = max(batch * heads, bias.inner * bias.query_marks.shape[0]) * keys
    fitting = max(1, BIASED_ENTRIES // max(entries, 1))
    rows = min(fitting, max(BIASED_LEAST, -(-queries // BIASED_SHARE)), queries)
    recompute = fitting < queries and torch.is_grad_enabled()
    learned = bias.learned and torch.is_grad_enabled()
    blocks = []
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        seen = call.offset + stop if call.causal and isinstance(call.offset, int) else keys
        arguments = (q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen], call, bias, slice(start, stop), learned)
        if recompute:
            blocks.append(checkpoint(_biased_block, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            blocks.append(_biased_block(*arguments))
    return torch.cat(blocks, dim=2)


def _biased_block(q: Tensor, k: Tensor, v: Tensor, call: _Call, bias: ScoreBias, at: slice, learned: bool) -> Tensor:
    """Attention of the queries ``at`` over the first keys.

    torch's fused kernels take a bias as a mask, but give it no gradient, and CUDA's read it as what it is only in the
    query's own dtype. Rounded to bf16 it would be off by 4 at -1,000: where it is learned or wider than the query, the
    block goes through fp32 matrices.
    """
    keys, ids = k.shape[2], call.document_ids
    ids = None if ids is None else ids[:, :keys]
    allowed_B1TS = allowed_keys(q.shape[2], keys, call.causal, ids, call.offset + at.start, q.device)[:, None]
    bias_BHTS = bias.of(at, slice(0, keys))
    if learned or bias_BHTS.dtype != q.dtype:
        bias_BHTS = bias_BHTS.expand(-1, q.shape[1], -1, -1)
        return _fp32_attention(q, k, v, allowed_B1TS, call.scale, bias_BHTS)
    blind_B1T1 = ~allowed_B1TS.any(dim=-1, keepdim=True)
    mask = bias_BHTS.masked_fill(~(allowed_B1TS | blind_B1T1), -torch.inf)
    return _sdpa_call(q, k, v, mask, False, call.scale).masked_fill(blind_B1T1, 0.0)


def _fp32_attention(q: Tensor, k: Tensor, v: Tensor, allowed_B1TS: Tensor, scale: float, bias_BHTS: Tensor) -> Tensor:
    """Plain matrices, grouped queries side by side instead of repeated keys; 0 for a query that may see no key."""
    groups, queries = k.shape[1], q.shape[2]
    q_BGXK = reference.upcast(q).unflatten(1, (groups, -1)).flatten(2, 3)
    scores_BGXS = q_BGXK @ k.transpose(-1, -2) * scale
    scores_BHTS = scores_BGXS.unflatten(2, (-1, queries)).flatten(1, 2) + bias_BHTS
    scores_BHTS = scores_BHTS.masked_fill(~allowed_B1TS, torch.finfo(scores_BHTS.dtype).min)
    weights_BHTS = scores_BHTS.softmax(dim=-1).masked_fill(~allowed_B1TS, 0.0)
    out_BGXV = weights_BHTS.unflatten(1, (groups, -1)).flatten(2, 3) @ v
    return out_BGXV.unflatten(2, (-1, queries)).flatten(1, 2).to(q.dtype)


def _as_slice(places: Tensor, device: torch.device) -> slice | Tensor:
    """Sorted places as a slice where they are consecutive (no copy), else as an index."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return slice(first, last + 1)
    return places.to(device)


def _sdpa_call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """torch's SDPA for a value as wide as the key, or wider: its flash backends refuse unequal widths."""
    sdpa = functools.partial(
        F.scaled_dot_product_attention,
        attn_mask=mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    width, value_width = q.shape[-1], v.shape[-1]
    if value_width == width:
        return sdpa(q, k, v)
    if value_width > width and q.device.type == "cuda" and value_width > CUDA_PADDED_WIDTH:
        return torch.cat([_sdpa_call(q, k, part, mask, is_causal, scale) for part in v.split(width, dim=-1)], dim=-1)
    common = max(width, value_width)  # columns of zeros change neither the scores nor the sums
    q, k, v = (x if x.shape[-1] == common else F.pad(x, (0, common - x.shape[-1])) for x in (q, k, v))
    return sdpa(q, k, v)[..., :value_width]


def _flex(call: _Call) -> Tensor:
    """torch's FlexAttention, compiled: bias, causality and documents are part of the kernel.

    What a block skips is not read, but the rest of a block is multiplied by 0: padding is zeroed here too.
    """
    q, k, v = _blank_padding(call.q, call.k, call.v, call.document_ids, call.offset)
    return flex_attend(*call._replace(q=q, k=k, v=v), compiled=True)


_BACKENDS: dict[str, Callable[[_Call], Tensor]] = {"flex": _flex, "reference": _reference, "sdpa": _sdpa}
