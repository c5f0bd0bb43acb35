"""Llama's RMSNorm of fp32 states on a CPU: its numbers, and a backward of eight passes where autograd makes seventeen.

Shape letters: D normed columns.
"""

from typing import Any

import torch
from torch import Tensor

from tape_ds.kernels.operators import operator


def why_not(x_D: Tensor, weight_D: Tensor) -> str | None:
    """Return why :func:`rms_norm` does not take these, or None."""
    if not x_D.is_cpu or x_D.dtype != torch.float32 or weight_D.dtype != torch.float32:
        return "is for fp32 tensors on a CPU"
    if torch.compiler.is_compiling():
        return "would keep a compiler from fusing its parts"
    return None


def rms_norm(x_D: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    """Return ``weight * x / sqrt(mean(x^2) + epsilon)`` [..., D], rounded as transformers' ``LlamaRMSNorm`` does; twice
    differentiable."""
    return _norm(x_D, weight_D, epsilon)[0]


@operator("tape_ds::rms_norm", devices=("cpu",))
def _norm(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    scale = _scale(x, epsilon)
    return weight * (x * scale), scale


@_norm.register_fake
def _(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    return weight * x, x.new_empty(*x.shape[:-1], 1)


def _scale(x_D: Tensor, epsilon: float) -> Tensor:
    return torch.rsqrt(x_D.pow(2).mean(-1, keepdim=True) + epsilon)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    x, weight, ctx.epsilon = inputs
    _, scale = output
    ctx.mark_non_differentiable(scale)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, scale)


def _gradients(
    ctx: Any, d_out: Tensor | None, _: None
) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, scale = ctx.saved_tensors
    for_x, for_weight, _ = ctx.needs_input_grad
    if d_out is None:
        return None, None, None
    if torch.is_grad_enabled():
        # differentiated again: through the scale too
        scale = _scale(x, ctx.epsilon)
    normed = x * scale
    d_x: Tensor | None = None
    d_weight: Tensor | None = None
    if for_weight:
        d_weight = (d_out * normed).sum_to_size(weight.shape)
    if for_x:
        d_normed = d_out * weight
        along = (d_normed * normed).mean(-1, keepdim=True)
        d_x = torch.addcmul(d_normed, normed, along, value=-1) * scale
    return d_x, d_weight, None


_norm.register_autograd(_gradients, setup_context=_keep)
