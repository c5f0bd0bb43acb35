"""The arguments of one attention call, and the mask that they stand for.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tape_ds.model.attention.borders import Borders
from tape_ds.model.score_bias import ContentBias, ScoreBias


class AttentionCall(NamedTuple):
    """The arguments of :func:`tape_ds.model.attention.attend.attend`, defaults filled in."""

    q: Tensor
    k: Tensor
    values: tuple[Tensor, ...]
    """One or more, each [B, G, S, V] of a width of its own: all are weighted by the same softmax."""
    borders: Borders | None
    offset: int | Tensor
    scale: float
    bias: ScoreBias | ContentBias | None

    @property
    def document_ids(self) -> Tensor | None:
        """[B, S], -1 = padding; None where there is neither padding nor a second document."""
        return None if self.borders is None else self.borders.ids_BS

    @property
    def v(self) -> Tensor:
        """The value of a call that has one."""
        (value,) = self.values
        return value

    @property
    def trains(self) -> bool:
        """Whether anybody asks for a gradient."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in (self.q, self.k, *self.values))


def joined(function: Callable[[AttentionCall], Tensor], call: AttentionCall) -> tuple[Tensor, ...]:
    """Return the outputs of a function that takes one value, by giving it all values side by side."""
    if len(call.values) == 1:
        return (function(call),)
    out_BHTV = function(call._replace(values=(torch.cat(call.values, dim=-1),)))
    return out_BHTV.split([value.shape[-1] for value in call.values], dim=-1)


def complete(
    q: Tensor,
    k: Tensor,
    values: tuple[Tensor, ...],
    borders: Borders | None,
    offset: int | Tensor | None,
    scale: float | None,
    bias: ScoreBias | ContentBias | None,
) -> AttentionCall:
    """Fill the defaults in, and drop the keys behind the last query: they play no part.

    Raises:
        ValueError: queries that stand outside the key axis, or borders of other sequences.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    offset = k.shape[2] - q.shape[2] if offset is None else offset
    if isinstance(offset, Tensor):
        return AttentionCall(q, k, values, borders, offset, scale, bias)
    seen = offset + q.shape[2]
    if offset < 0 or seen > k.shape[2]:
        raise ValueError(f"{q.shape[2]} queries at offset {offset} do not fit on an axis of {k.shape[2]} keys")
    if seen < k.shape[2]:
        k, values = k[:, :, :seen], tuple(value[:, :, :seen] for value in values)
        bias = bias.until(seen) if isinstance(bias, ScoreBias) else bias  # a ContentBias sees the keys it is given
    if borders is not None and (len(q), k.shape[2], q.shape[2]) != (*borders.ids_BS.shape, borders.queries):
        raise ValueError(
            f"borders of {list(borders.ids_BS.shape)} keys and {borders.queries} queries do not fit "
            f"{q.shape[2]} queries over {[len(q), k.shape[2]]} keys"
        )
    return AttentionCall(q, k, values, borders, offset, scale, bias)


def allowed_keys(
    queries: int, keys: int, document_ids: Tensor | None, offset: int | Tensor, device: torch.device
) -> Tensor:
    """Return the mask that a call stands for: bool [B or 1, T, S], True where a query may see a key."""
    query_positions = torch.arange(queries, device=device) + offset
    key_positions = torch.arange(keys, device=device)
    allowed_1TS = (key_positions[None, :] <= query_positions[:, None])[None]
    if document_ids is None:
        return allowed_1TS
    query_ids_BT = document_ids.index_select(1, query_positions)
    same_BTS = (query_ids_BT[:, :, None] == document_ids[:, None, :]) & (document_ids >= 0)[:, None, :]
    return allowed_1TS & same_BTS


def blank_padding(call: AttentionCall) -> AttentionCall:
    """Zero whatever padding holds: a weight of 0 times NaN would still be NaN, forward and backward."""
    if call.borders is None or not call.borders.may_pad:
        return call
    padding_B1S1 = (call.borders.ids_BS < 0)[:, None, :, None]
    query_positions = torch.arange(call.q.shape[2], device=call.q.device) + call.offset
    q = call.q.masked_fill(padding_B1S1.index_select(2, query_positions), 0.0)
    k, *values = (x.masked_fill(padding_B1S1, 0.0) for x in (call.k, *call.values))
    return call._replace(q=q, k=k, values=tuple(values))


def has_flash(x: Tensor) -> bool:
    """Return whether torch's FlashAttention runs where ``x`` is: not on NVIDIA's GPUs before Ampere, a V100 for one."""
    return not x.is_cuda or torch.cuda.get_device_capability(x.device) >= (8, 0)


def fp32_kept(q: Tensor) -> torch.autocast:
    """Autocast would turn matrix products that are fp32 on purpose back into bf16."""
    return torch.autocast(q.device.type, enabled=False)
