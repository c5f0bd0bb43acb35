"""FLOPs of the operators of this package for torch's ``FlopCounterMode`` and profilers built on it.

They see an operator as one call, so each has a formula of its multiplications, in torch's convention: a causal mask is
not subtracted, recomputation is not added, and padding inside a kernel is not counted.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width, I position
rank, N tokens, D hidden size, C entries of the vocabulary.
"""

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from tape_ds.kernels import (
    cpu_attention,
    decode_attention,
    linear_cross_entropy,
    position_mix,
    tape_attention,
)

__all__ = [
    "cpu_attention",
    "decode_attention",
    "linear_cross_entropy",
    "position_mix",
    "tape_attention",
]

Shape = tuple[int, ...]
_ops = torch.ops.tape_ds


@register_flop_formula(_ops.cpu_attention)
def attention(q_shape: Shape, k_shape: Shape, v_shape: Shape, *_: Any, **__: Any) -> int:
    """Return scores and values."""
    return 2 * math.prod(q_shape[:3]) * k_shape[2] * (q_shape[3] + v_shape[3])


@register_flop_formula(_ops.cpu_attention_backward)
def attention_backward(
    grad_shape: Shape, q_shape: Shape, k_shape: Shape, v_shape: Shape, *_: Any, **__: Any
) -> int:
    """Return scores again, and a product for each of dP, dV (value wide), dQ, dK (key wide)."""
    return 2 * math.prod(q_shape[:3]) * k_shape[2] * (3 * q_shape[3] + 2 * v_shape[3])


@register_flop_formula(_ops.position_mix)
def mix(
    start: Shape, state: Any, attended: Any, attend: Any, gate: Any, expand: Any, *_: Any, **__: Any
) -> int:
    """Count the mix across heads, one G x G matrix per token, and its product with the state, from shapes or None."""
    tokens, width = start[2:]
    count = 0
    if attended is not None and attend is not None:
        count += attended[0] * math.prod(attend) * width
    if gate is not None and expand is not None:
        rank, groups = expand
        count += gate[0] * groups**2 * (rank + width)
    return 2 * tokens * count


@register_flop_formula(_ops.position_mix_backward)
def mix_backward(grad_shape: Shape, *inputs: Any, **__: Any) -> int:
    """Two products for each of the forward's."""
    return 2 * mix(*inputs[:6])


@register_flop_formula(_ops.linear_cross_entropy)
def head_and_loss(hidden_shape: Shape, weight_shape: Shape, *others: Any, **_: Any) -> int:
    """Count the logits, and the products of the gradients that are computed."""
    for_hidden, for_weight = others[4:6]  # after the labels, ignore_index, chunk and dtype
    return 2 * hidden_shape[0] * math.prod(weight_shape) * (1 + for_hidden + for_weight)


@register_flop_formula([_ops.tape_attention, _ops.decode_attention])
def moving(
    q_shape: Shape, k_shape: Shape, v_shape: Shape, e_shape: Shape | None, *_: Any, **__: Any
) -> int:
    """Return scores, values and, if there is one, the position state."""
    return 2 * math.prod(q_shape[:3]) * k_shape[2] * q_shape[3] * (2 if e_shape is None else 3)


@register_flop_formula(_ops.tape_attention_backward)
def moving_backward(
    grad_shape: Shape, moved_shape: Shape, q_shape: Shape, k_shape: Shape, *_: Any, **__: Any
) -> int:
    """Return scores again, and a product for each of dQ, dK, dV, dE and both parts of dP."""
    return 2 * math.prod(q_shape[:3]) * k_shape[2] * q_shape[3] * 7
