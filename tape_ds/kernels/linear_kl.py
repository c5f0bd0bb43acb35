"""KL divergence between two output heads' distributions as one operator, a chunk of tokens at a time.

As :mod:`tape_ds.kernels.linear_cross_entropy`: only one chunk's logits exist, the gradients are computed in the
forward, where the logits are, and the backward only scales them. Nothing is differentiated in the teacher.

Shape letters: N tokens, C tokens of a chunk, D hidden size, E the teacher's, V entries of the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tape_ds.kernels.autocast import without_autocast
from tape_ds.kernels.linear_cross_entropy import (
    add_product,
    chunk_tokens,
    product_dtype,
    scaled_gradient,
    softmax_dtype,
)


def linear_kl(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    teacher_NE: Tensor,
    teacher_VE: Tensor,
    *,
    chunk: int | None = None,
) -> Tensor:
    """Return sum over tokens of KL(teacher || student), softmax at temperature 1; fp32 scalar (fp64 for fp64 input), in
    nats.

    Args:
        hidden_ND: what the student's head reads; under autocast products are in its dtype.
        weight_VD: the student's head.
        teacher_NE: what the teacher's head reads.
        teacher_VE: the teacher's head, of the same vocabulary and of the dtype of ``teacher_NE``.
        chunk: tokens whose logits exist at once; default :func:`.linear_cross_entropy.chunk_tokens`.
    """
    student, teacher = (hidden_ND, weight_VD), (teacher_NE, teacher_VE)
    fits = all(x.ndim == w.ndim == 2 and x.shape[1] == w.shape[1] for x, w in (student, teacher))
    if not fits or len(hidden_ND) != len(teacher_NE) or len(weight_VD) != len(teacher_VE):
        shapes = ", ".join(str(tuple(x.shape)) for x in (*student, *teacher))
        raise ValueError(
            f"hidden [N, D], weight [V, D], and [N, E], [V, E] of the teacher are needed, not {shapes}"
        )
    chunk = chunk_tokens(len(weight_VD)) if chunk is None else chunk
    if chunk < 1:
        raise ValueError(f"chunk = {chunk}: give 1 token or more")
    found: Tensor = _LinearKl.apply(hidden_ND, weight_VD, teacher_NE, teacher_VE, chunk)
    return found


class _LinearKl(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, teacher: Tensor, teacher_head: Tensor, chunk: int
    ) -> Tensor:
        for_hidden, for_weight = ctx.needs_input_grad[:2]
        dtype = product_dtype(hidden)
        loss = hidden.new_zeros((), dtype=softmax_dtype(hidden))
        d_hidden = torch.zeros_like(hidden) if for_hidden else None
        d_weight: Tensor | None = None
        weight_VD = weight.to(dtype)
        with without_autocast(hidden.device.type):
            for at in range(0, len(hidden), chunk):
                rows = slice(at, at + chunk)
                hidden_CD = hidden[rows].to(dtype)
                log_q_CV = torch.log_softmax(hidden_CD @ weight_VD.t(), dim=-1, dtype=loss.dtype)
                log_p_CV = torch.log_softmax(
                    teacher[rows] @ teacher_head.t(), dim=-1, dtype=loss.dtype
                )
                p_CV = log_p_CV.exp()
                loss += log_p_CV.sub_(log_q_CV).mul_(p_CV).sum()
                del log_p_CV
                d_logits_CV = log_q_CV.exp_().sub_(p_CV).to(dtype)
                if d_hidden is not None:
                    d_hidden[rows] = d_logits_CV @ weight_VD
                if for_weight:
                    d_weight = add_product(d_weight, d_logits_CV.t(), hidden_CD)
        ctx.dtypes = (hidden.dtype, weight.dtype)
        ctx.save_for_backward(d_hidden, d_weight)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        kept = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        found = [
            None if each is None else scaled_gradient(each, factor, dtype) for each, dtype in kept
        ]
        return (*found, None, None, None)
