"""torch's fused CPU attention for a value of another width than the key, without waste in memory.

The kernel itself takes one width, so queries and keys are padded by zeros to the value's, which costs less than a call
for each half of it. Called through ``scaled_dot_product_attention``, the padded tensors would be kept for the backward;
here they are made again. Grouped queries it answers by itself, without repeated keys.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width, W the wider of
K and V.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from tape_ds.kernels.operators import operator
from tape_ds.kernels.strides import empty_rows

_aten = torch.ops.aten


def cpu_attention(
    q_BHTK: Tensor, k_BGSK: Tensor, v_BGSV: Tensor, is_causal: bool, scale: float
) -> Tensor:
    """Softmax attention on CPU tensors, without a mask.

    Args:
        q_BHTK: queries; head h reads key/value head h // (H / G).
        k_BGSK: keys.
        v_BGSV: values.
        is_causal: query t sees the keys 0 .. t.
        scale: factor on the scores.

    Returns:
        [B, H, T, V], its memory in the order [B, T, H, V].
    """
    # as autocast does for torch's own
    if torch.is_autocast_enabled("cpu") and q_BHTK.dtype != torch.float64:
        dtype = torch.get_autocast_dtype("cpu")
        q_BHTK, k_BGSK, v_BGSV = q_BHTK.to(dtype), k_BGSK.to(dtype), v_BGSV.to(dtype)
    return _forward(q_BHTK, k_BGSK, v_BGSV, is_causal, scale)[0]


@operator("tape_ds::cpu_attention", devices=("cpu",))
def _forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    wide = max(q.shape[-1], v.shape[-1])
    out_BHTW, lse_BHT = _aten._scaled_dot_product_flash_attention_for_cpu(
        _pad(q, wide), _pad(k, wide), _pad(v, wide), 0.0, is_causal, scale=scale
    )
    return _rows(out_BHTW, q, v.shape[-1]), lse_BHT.clone(memory_format=torch.contiguous_format)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    return empty_rows(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=statistics)


@operator("tape_ds::cpu_attention_backward", devices=("cpu",))
def _backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse_BHT: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    key_width, value_width = q.shape[-1], v.shape[-1]
    wide = max(key_width, value_width)
    parts = list(
        _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(_pad(x, wide) for x in (d_out, q, k, v, out)), lse_BHT, 0.0, is_causal, scale=scale
        )
    )
    gradients = []
    for x, width in ((q, key_width), (k, key_width), (v, value_width)):
        # popped: the wide one is gone
        gradients.append(_rows(parts.pop(0), x, width))
    dq, dk, dv = gradients
    return dq, dk, dv


@_backward.register_fake
def _(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse_BHT: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return empty_rows(q, q.shape[-1]), empty_rows(k, q.shape[-1]), empty_rows(k, v.shape[-1])


def _rows(wide_BHTW: Tensor, like_BHTK: Tensor, width: int) -> Tensor:
    """Return the first columns of torch's result as :func:`empty_rows` lays them out: the result itself where it is."""
    if wide_BHTW.shape[-1] == width and wide_BHTW.transpose(1, 2).is_contiguous():
        return wide_BHTW
    return empty_rows(like_BHTK, width).copy_(wide_BHTW[..., :width])


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)


def _gradients(ctx, d_out, d_lse):  # type: ignore[no-untyped-def]
    return *_backward(d_out, *ctx.saved_tensors, ctx.is_causal, ctx.scale), None, None


_forward.register_autograd(_gradients, setup_context=_keep)


def _pad(x_BHTK: Tensor, width: int) -> Tensor:
    """In the same memory order as :func:`empty_rows`: torch's kernel gives its output the query's."""
    missing = width - x_BHTK.shape[-1]
    return F.pad(x_BHTK.transpose(1, 2), (0, missing)).transpose(1, 2) if missing else x_BHTK
