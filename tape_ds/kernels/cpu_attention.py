"""torch's fused CPU attention for grouped queries and a value of another width than the key, without waste in memory.

The kernel itself takes one width and one number of heads, so queries and keys are padded by zeros to the value's width
(which costs it nothing: measured, 0.093 s for width 128 against 0.099 s for width 64 at 12 heads of 2,048 tokens) and
grouped queries are answered in one call for each of a group's heads. Called through
``scaled_dot_product_attention``, the padded and the repeated tensors would be kept for the backward; here they are made
again.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width, W the wider of
K and V.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

_aten = torch.ops.aten


def cpu_attention(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSV: Tensor, is_causal: bool, scale: float) -> Tensor:
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
    if torch.is_autocast_enabled("cpu") and q_BHTK.dtype != torch.float64:  # as autocast does for torch's own
        dtype = torch.get_autocast_dtype("cpu")
        q_BHTK, k_BGSK, v_BGSV = q_BHTK.to(dtype), k_BGSK.to(dtype), v_BGSV.to(dtype)
    return _forward(q_BHTK, k_BGSK, v_BGSV, is_causal, scale)[0]


@torch.library.custom_op("tape_ds::cpu_attention", mutates_args=(), device_types="cpu")
def _forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    wide = max(q.shape[-1], v.shape[-1])
    k, padded_v = _pad(k, wide), _pad(v, wide)
    out = _like_projections(q, v.shape[-1])
    lse_BHT = q.new_empty(q.shape[:3], dtype=_statistics(q))
    heads = q.shape[1] // k.shape[1]
    for own in range(heads):
        out_BGTW, lse_BGT = _aten._scaled_dot_product_flash_attention_for_cpu(
            _pad(q[:, own::heads], wide), k, padded_v, 0.0, is_causal, scale=scale
        )
        if heads == 1 and wide == v.shape[-1] and out_BGTW.stride() == out.stride():
            return out_BGTW, lse_BGT.clone(memory_format=torch.contiguous_format)
        out[:, own::heads] = out_BGTW[..., : v.shape[-1]]
        lse_BHT[:, own::heads] = lse_BGT
    return out, lse_BHT


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    return _like_projections(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=_statistics(q))


@torch.library.custom_op("tape_ds::cpu_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse_BHT: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    key_width, value_width = q.shape[-1], v.shape[-1]
    wide = max(key_width, value_width)
    k, padded_v = _pad(k, wide), _pad(v, wide)
    dq, dk, dv = _like_projections(q, key_width), _like_projections(k, key_width), _like_projections(k, value_width)
    heads = q.shape[1] // k.shape[1]
    for own in range(heads):
        at = slice(own, None, heads)
        parts = list(
            _aten._scaled_dot_product_flash_attention_for_cpu_backward(
                _pad(d_out[:, at], wide),
                _pad(q[:, at], wide),
                k,
                padded_v,
                _pad(out[:, at], wide),
                lse_BHT[:, at],
                0.0,
                is_causal,
                scale=scale,
            )
        )
        dq[:, at] = parts.pop(0)[..., :key_width]  # popped: the wide ones are gone one by one
        for total, width in ((dk, key_width), (dv, value_width)):
            part = parts.pop(0)[..., :width]
            total.add_(part) if own else total.copy_(part)
    return dq, dk, dv


@_backward.register_fake
def _(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse_BHT: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _like_projections(q, q.shape[-1]), _like_projections(k, q.shape[-1]), _like_projections(k, v.shape[-1])


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)


def _gradients(ctx, d_out, d_lse):  # type: ignore[no-untyped-def]
    return *_backward(d_out, *ctx.saved_tensors, ctx.is_causal, ctx.scale), None, None


_forward.register_autograd(_gradients, setup_context=_keep)


def _like_projections(x_BHTK: Tensor, width: int) -> Tensor:
    """Empty [B, H, T, width] in the memory order of the projections around attention, [B, T, H, width]."""
    batch, heads, tokens, _ = x_BHTK.shape
    return x_BHTK.new_empty(batch, tokens, heads, width).transpose(1, 2)


def _pad(x_BHTK: Tensor, width: int) -> Tensor:
    """In the same memory order as :func:`_like_projections`: torch's kernel gives its output the query's."""
    missing = width - x_BHTK.shape[-1]
    return F.pad(x_BHTK.transpose(1, 2), (0, missing)).transpose(1, 2) if missing else x_BHTK


def _statistics(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype == torch.float64 else torch.float32
