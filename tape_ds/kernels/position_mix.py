"""One layer's update of the position state, forward and backward, as one operator.

    u  = attend @ (A e)                                     across heads, the same for every channel
    d' = d + u + contract diag(SiLU(gate)) expand (start + d + u)

``d`` is the stored deviation, ``start + d`` the state; with ``unit`` its pairs then get the moduli of their start back
(``pair_modulus.py``). On a GPU the update is one pass over memory by a Triton kernel
(``position_mix_triton.py``), elsewhere a few batched products (``position_mix_plain.py``). Neither ever holds anything
of [B, I, T, K], and the backward keeps nothing but the inputs.

Shape letters: B batch, T tokens, H query heads, G key/value heads (one state each), K head size, I position rank.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tape_ds.kernels import position_mix_plain, position_mix_triton
from tape_ds.kernels.autocast import without_autocast
from tape_ds.kernels.operators import operator
from tape_ds.kernels.position_mix_inputs import Inputs, empty, empty_gradients


def position_mix(
    start_B1TK: Tensor,
    state_BGTK: Tensor | None,
    attended_BHTK: Tensor | None,
    attend_GH: Tensor | None,
    gate_BTI: Tensor | None,
    expand_IG: Tensor | None,
    contract_GI: Tensor | None,
    *,
    dtype: torch.dtype,
    unit: bool = False,
) -> Tensor:
    """Return the state's deviation after one layer (TAPE, arXiv:2501.00712, Section 3.3, both updates).

    Sums are fp32 (fp64 for fp64 input), rounded once to ``dtype``. Weights are cast to the dtype of what they meet
    (``attend`` to ``moved``'s, the others to ``gate``'s), as autocast would; their gradients come in their own dtype.

    Args:
        start_B1TK: fp32 [B or 1, 1 or G, T, K], where the state started. Never needs a gradient.
        state_BGTK: the deviation so far; None is zero.
        attended_BHTK: ``A e``, what attention made of the state; None, with ``attend_GH``, leaves that update out.
        attend_GH: W_att.
        gate_BTI: ``W_x y``, before its SiLU; None, with the two matrices, leaves the feed-forward out.
        expand_IG: W_up.
        contract_GI: W_down.
        dtype: of the result.
        unit: whether every pair (cos_j, sin_j) of the new state has the modulus of its start.

    Returns:
        [B, G, T, K], seen in memory of [B, T, G, K].
    """
    inputs = Inputs(
        start_B1TK, state_BGTK, attended_BHTK, attend_GH, gate_BTI, expand_IG, contract_GI
    )
    inputs.check()
    mixed: Tensor = _mix(*inputs, dtype, unit)
    return mixed


# The fields of Inputs, in their order.
_ARGUMENTS = "Tensor start, Tensor? state, Tensor? moved, Tensor? attend, Tensor? gate"
_ARGUMENTS += ", Tensor? expand, Tensor? contract"


@operator("tape_ds::position_mix", schema=f"({_ARGUMENTS}, ScalarType dtype, bool unit) -> Tensor")
def _mix(*arguments: Any) -> Tensor:
    *tensors, dtype, unit = arguments
    inputs = Inputs(*tensors)
    out = empty(inputs, dtype)
    # its casts would reach the products inside
    with without_autocast(inputs.start.device.type):
        _form(inputs).forward(inputs, out, unit)
    return out


@operator(
    "tape_ds::position_mix_backward",
    schema=f"(Tensor grad, {_ARGUMENTS}, bool[] needed, bool unit) -> Tensor[]",
)
def _mix_backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    *tensors, needed, unit = arguments
    inputs = Inputs(*tensors)
    gradients = empty_gradients(inputs, needed)
    with without_autocast(grad.device.type):
        _form(inputs).backward(grad, inputs, gradients, unit)
    return [x for x in gradients if x is not None]


def _form(inputs: Inputs) -> ModuleType:
    """Return the module that computes these tensors: Triton's where its kernels run."""
    return position_mix_triton if position_mix_triton.fits(inputs) else position_mix_plain


@_mix.register_fake
def _(*arguments: Any) -> Tensor:
    *tensors, dtype, _ = arguments
    return empty(Inputs(*tensors), dtype)


@_mix_backward.register_fake
def _(grad: Tensor, *arguments: Any) -> list[Tensor]:
    *tensors, needed, _ = arguments
    return [x for x in empty_gradients(Inputs(*tensors), needed) if x is not None]


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *tensors, _, ctx.unit = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad):  # type: ignore[no-untyped-def]
    needed = list(ctx.needs_input_grad[1:7])
    gradients = iter(_mix_backward(grad, *ctx.saved_tensors, needed, ctx.unit))
    return None, *(next(gradients) if each else None for each in needed), None, None


_mix.register_autograd(_differentiate, setup_context=_save)
