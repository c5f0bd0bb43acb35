"""A state that stays a rotation: every pair (cos_j, sin_j) is given the modulus of its start back.

    e' = (start + d) |start_j| / |start_j + d_j|,    d' = e' - start

Written so, d' would be the small difference of two numbers near 1. It is formed from d instead: with
``c = |e|^2 / |start|^2 - 1 = (2 start + d) . d / |start|^2`` and ``r = sqrt(1 + c)``, the factor is
``1 - c / (r (1 + r))``, and ``d = 0`` gives exactly 0. The rule commutes with turning all states by one angle.

Shape letters: P pairs, C = 2 P columns, the cosines first.
"""

import torch
from torch import Tensor

LEAST = (
    1e-6  # of |e|^2 / |start|^2: a pair near 0 has no direction, and is stretched by 1,000 at most
)


def restore_modulus(start_C: Tensor, deviation_C: Tensor) -> Tensor:
    """Return the deviation whose state has the start's moduli.

    Args:
        start_C: [..., C], broadcast against the deviation.
        deviation_C: [..., C], in the dtype of the arithmetic.
    """
    start, deviation = _pairs(start_C), _pairs(deviation_C)
    own, state = _squares(start), start + deviation
    root = (_squares(state) / own).clamp_min(LEAST).sqrt()
    change = (((2 * start + deviation) * deviation).sum(-2, keepdim=True) / own).clamp_min(
        LEAST - 1
    )
    return torch.addcmul(deviation, change / (root * (1 + root)), state, value=-1).flatten(-2)


def scaled_to(start_C: Tensor, state_C: Tensor) -> Tensor:
    """Return a whole state [..., C], not a deviation, with the start's moduli, in its own dtype."""
    wide = torch.promote_types(start_C.dtype, state_C.dtype)
    start, state = _pairs(start_C.to(wide)), _pairs(state_C.to(wide))
    own = _squares(start)
    return (
        (state * (own / torch.maximum(_squares(state), LEAST * own)).sqrt())
        .flatten(-2)
        .to(state_C.dtype)
    )


def restore_modulus_backward(grad_C: Tensor, start_C: Tensor, deviation_C: Tensor) -> Tensor:
    """Return the gradient of the deviation: what of ``grad`` is across the state, over the state's modulus."""
    grad, start = _pairs(grad_C), _pairs(start_C)
    own, state = _squares(start), start + _pairs(deviation_C)
    squares = _squares(state) / own
    along = (grad * state).sum(-2, keepdim=True) / (own * squares)
    along = torch.where(squares > LEAST, along, 0.0)
    return (torch.addcmul(grad, along, state, value=-1) / squares.clamp_min(LEAST).sqrt()).flatten(
        -2
    )


def _pairs(x_C: Tensor) -> Tensor:
    """[..., C] -> [..., 2, P]."""
    return x_C.unflatten(-1, (2, -1))


def _squares(x_2P: Tensor) -> Tensor:
    """Return the squared moduli, [..., 1, P]."""
    return x_2P.square().sum(-2, keepdim=True)
