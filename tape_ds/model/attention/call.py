"""The arguments of one attention call, and the mask that they stand for.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tape_ds.model.score_bias import ScoreBias


class Call(NamedTuple):
    """The arguments of :func:`tape_ds.model.attention.attend`, defaults filled in."""

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    document_ids: Tensor | None
    offset: int | Tensor
    scale: float
    bias: ScoreBias | None


def complete(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    document_ids: Tensor | None,
    offset: int | Tensor | None,
    scale: float | None,
    bias: ScoreBias | None,
) -> Call:
    """Fill the defaults in, and drop the keys behind the last query: they play no part.

    Raises:
        ValueError: queries that stand outside the key axis.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    offset = k.shape[2] - q.shape[2] if offset is None else offset
    if isinstance(offset, Tensor):
        return Call(q, k, v, causal, document_ids, offset, scale, bias)
    seen = offset + q.shape[2]
    if offset < 0 or seen > k.shape[2]:
        raise ValueError(f"{q.shape[2]} queries at offset {offset} do not fit on an axis of {k.shape[2]} keys")
    if causal and seen < k.shape[2]:
        k, v = k[:, :, :seen], v[:, :, :seen]
        document_ids = None if document_ids is None else document_ids[:, :seen]
        bias = None if bias is None else bias.until(seen)
    return Call(q, k, v, causal, document_ids, offset, scale, bias)


def documents_of(cu_seqlens: Tensor, keys: int | None = None) -> Tensor:
    """``cu_seqlens`` as ``document_ids``: one row of packed documents, as FlashAttention's varlen functions take it.

    Args:
        cu_seqlens: integers [N + 1], from 0, ascending: document n has the tokens ``cu_seqlens[n] ..
            cu_seqlens[n + 1]``.
        keys: S; tokens behind the last document are padding. Default: the last entry.

    Returns:
        int32 [1, S].

    Raises:
        ValueError: not one ascending row from 0, or one that ends behind ``keys``.
    """
    ends = cu_seqlens.tolist()
    if cu_seqlens.dim() != 1 or not ends or ends[0] != 0 or ends != sorted(ends):
        raise ValueError(f"cu_seqlens must be one ascending row that starts with 0, not {ends}")
    keys = ends[-1] if keys is None else keys
    if ends[-1] > keys:
        raise ValueError(f"cu_seqlens ends at {ends[-1]}, behind the {keys} keys")
    places = torch.arange(keys, device=cu_seqlens.device)
    ids = torch.bucketize(places, cu_seqlens[1:], right=True)
    return torch.where(places < ends[-1], ids, -1).int()[None]


def allowed_keys(
    queries: int, keys: int, causal: bool, document_ids: Tensor | None, offset: int | Tensor, device: torch.device
) -> Tensor:
    """The mask that a call stands for: bool [B or 1, T, S], True where a query may see a key."""
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


def blank_padding(call: Call) -> Call:
    """Zero whatever padding holds: a weight of 0 times NaN would still be NaN, forward and backward."""
    if call.document_ids is None:
        return call
    padding_B1S1 = (call.document_ids < 0)[:, None, :, None]
    query_places = torch.arange(call.q.shape[2], device=call.q.device) + call.offset
    q = call.q.masked_fill(padding_B1S1.index_select(2, query_places), 0.0)
    return call._replace(q=q, k=call.k.masked_fill(padding_B1S1, 0.0), v=call.v.masked_fill(padding_B1S1, 0.0))


def fp32_kept(q: Tensor) -> torch.autocast:
    """Autocast would turn matrix products that are fp32 on purpose back into bf16."""
    return torch.autocast(q.device.type, enabled=False)
