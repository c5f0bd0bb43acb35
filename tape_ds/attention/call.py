"""The arguments of one attention call, and its mask.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from tape_ds.attention import NEEDS
from tape_ds.attention.document_layout import DocumentLayout
from tape_ds.attention.score_bias import ContentBias, ScoreBias
from tape_ds.kernels.autocast import without_autocast

ALIGNED = 8
"""Columns of queries, keys and values, and rows of their views, are multiples of it in 16 bits for fused kernels."""


class AttentionCall(NamedTuple):
    """The arguments of :func:`tape_ds.attention.attend.attend`, defaults filled in."""

    q: Tensor
    k: Tensor
    values: tuple[Tensor, ...]
    """One or more [B, G, S, V], of any widths: all are weighted by the same softmax."""
    layout: DocumentLayout | None
    offset: int | Tensor
    scale: float
    bias: ScoreBias | ContentBias | None
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def document_ids(self) -> Tensor | None:
        """[B, S], -1 = padding; None for one document without padding."""
        if self.layout is None:
            return None
        return self.layout.ids_BS

    @property
    def v(self) -> Tensor:
        (value,) = self.values
        return value

    @property
    def trains(self) -> bool:
        return torch.is_grad_enabled() and any(
            x.requires_grad for x in (self.q, self.k, *self.values)
        )

    @property
    def needs(self) -> list[str]:
        return [name for name in NEEDS if getattr(self, name) is not None]

    @property
    def changes_scores(self) -> bool:
        """Whether scores are more than scaled products, which torch's fused kernels cannot compute."""
        return self.bias is not None or self.softcap is not None or self.sinks is not None

    def part(self, start: int, stop: int) -> "AttentionCall":
        first = 0
        last = self.k.shape[2]
        if not isinstance(self.offset, Tensor):
            last = self.offset + stop
            first = 0 if self.window is None else max(0, self.offset + start - self.window + 1)
        window = None
        if self.window is not None and self.window < last - first:
            window = self.window
        if (start, stop, first, last) == (0, self.q.shape[2], 0, self.k.shape[2]):
            return self._replace(window=window)
        queries = slice(start, stop)
        keys = slice(first, last)
        offset = self.offset + start - first

        def cut(layout: DocumentLayout) -> DocumentLayout:
            return DocumentLayout(layout.ids_BS[:, keys], stop - start, offset)

        layout = self.layout
        bias = self.bias
        if layout is not None and (start, stop, first) != (0, layout.queries, 0):
            # A compiled graph's lengths cannot be looked up.
            layout = (
                cut(layout)
                if torch.compiler.is_compiling()
                else layout.cached(("part", start, stop, first), cut)
            )
        return self._replace(
            q=self.q[:, :, queries],
            k=self.k[:, :, keys],
            values=tuple(value[:, :, keys] for value in self.values),
            layout=layout,
            offset=offset,
            bias=bias.part(queries, keys) if isinstance(bias, ScoreBias) else bias,
            window=window,
        )


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
    layout: DocumentLayout | None = None,
    offset: int | Tensor | None = None,
    scale: float | None = None,
    score_bias: ScoreBias | ContentBias | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> AttentionCall:
    """Fill the defaults in; drop the keys that no query sees, and a window that reaches all that are left."""
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} keys: give 1 or more, or None")
    if score_bias is not None and (softcap is not None or sinks is not None):
        raise ValueError(
            "a bias on scores together with a soft cap on them or sinks is not supported"
        )
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    offset = k.shape[2] - q.shape[2] if offset is None else offset
    if not isinstance(offset, Tensor):
        seen = offset + q.shape[2]
        if offset < 0 or seen > k.shape[2]:
            raise ValueError(
                f"{q.shape[2]} queries at offset {offset} do not fit on an axis of {k.shape[2]} keys"
            )
        if layout is not None and (len(q), seen, q.shape[2]) != (
            *layout.ids_BS.shape,
            layout.queries,
        ):
            raise ValueError(
                f"a document layout of {list(layout.ids_BS.shape)} keys and {layout.queries} queries do not fit "
                f"{q.shape[2]} queries over {[len(q), seen]} keys"
            )
    call = AttentionCall(q, k, values, layout, offset, scale, score_bias, window, softcap, sinks)
    return call.part(0, q.shape[2])


def allowed_keys(call: AttentionCall) -> Tensor:
    """Return the mask of a call: bool [B or 1, T, S], True where a query may see a key."""
    document_ids = call.document_ids
    query_positions = torch.arange(call.q.shape[2], device=call.q.device) + call.offset
    key_positions = torch.arange(call.k.shape[2], device=call.q.device)
    allowed_1TS = (key_positions[None, :] <= query_positions[:, None])[None]
    if call.window is not None:
        allowed_1TS = allowed_1TS & (
            key_positions[None, :] > query_positions[:, None] - call.window
        )
    if document_ids is None:
        return allowed_1TS
    query_ids_BT = document_ids.index_select(1, query_positions)
    same_BTS = query_ids_BT[:, :, None] == document_ids[:, None, :]
    same_BTS = same_BTS & (document_ids >= 0)[:, None, :]
    return allowed_1TS & same_BTS


def blank_padding(call: AttentionCall) -> AttentionCall:
    """Zero padding: a weight of 0 times NaN would still be NaN, forward and backward."""
    if call.layout is None or not call.layout.may_pad:
        return call
    padding_B1S1 = (call.layout.ids_BS < 0)[:, None, :, None]
    query_positions = torch.arange(call.q.shape[2], device=call.q.device) + call.offset
    q = call.q.masked_fill(padding_B1S1.index_select(2, query_positions), 0.0)
    k, *values = (x.masked_fill(padding_B1S1, 0.0) for x in (call.k, *call.values))
    return call._replace(q=q, k=k, values=tuple(values))


def has_flash(x: Tensor) -> bool:
    """Return whether torch's FlashAttention runs on the device of ``x``; NVIDIA's GPUs need Ampere or newer."""
    return not x.is_cuda or torch.cuda.get_device_capability(x.device) >= (8, 0)


def fp32_kept(q: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off, which would cast fp32 matrix products to bf16."""
    return without_autocast(q.device.type)
