"""The output head and its cross-entropy with a weight for each target, a chunk of tokens at a time.

As :mod:`tape_ds.kernels.linear_cross_entropy`: only one chunk's logits exist, the gradients are computed in the
forward, where the logits are, and the backward only scales them.

Weights are given, or follow from the losses here and those of the same targets with a short context, as in LongCE (Fang
et al. 2024, arXiv:2410.23771, Section 4): ``min(exp(loss_short - loss), cap)``, through which nothing is
differentiated.

Shape letters: N tokens, C tokens of a chunk, D hidden size, V entries of the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from tape_ds.kernels.autocast import without_autocast
from tape_ds.kernels.linear_cross_entropy import (
    add_product,
    blank_chunks,
    chunk_tokens,
    kept_gradient,
    product_dtype,
    scaled_gradient,
    softmax_dtype,
)


def weighted_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    given_N: Tensor,
    *,
    cap: float | None = None,
    ignore_index: int = -100,
    chunk: int | None = None,
) -> Tensor:
    """Return three sums over the tokens that have a label: of weighted losses, of losses, of weights.

    Only the first has gradients, which are those of ``linear_cross_entropy`` with each token's part times its weight.

    Args:
        hidden_ND: what the head reads; under autocast products are in its dtype.
        weight_VD: the head's matrix.
        labels_N: int64, in [0, V), or ``ignore_index``.
        given_N: without ``cap`` the weights; with it losses in nats with a short context, NaN where the weight is 1.
            Entries without a label are not read.
        cap: the largest weight that follows from two losses.
        ignore_index: label of tokens that predict nothing.
        chunk: tokens whose logits exist at once; default :func:`.linear_cross_entropy.chunk_tokens`.

    Returns:
        fp32 [3] (fp64 for fp64 input), losses in nats.
    """
    fits = hidden_ND.ndim == weight_VD.ndim == 2 and hidden_ND.shape[1] == weight_VD.shape[1]
    if not fits or not hidden_ND.shape[:1] == labels_N.shape == given_N.shape:
        shapes = ", ".join(str(tuple(x.shape)) for x in (hidden_ND, weight_VD, labels_N, given_N))
        raise ValueError(
            f"hidden [N, D], weight [V, D], labels [N] and weights [N] are needed, not {shapes}"
        )
    chunk = chunk_tokens(weight_VD.shape[0]) if chunk is None else chunk
    if chunk < 1:
        raise ValueError(f"chunk = {chunk}: give 1 token or more")
    # under no_grad, where torch's needs_input_grad stays true, no gradient is computed
    wanted = tuple(torch.is_grad_enabled() and x.requires_grad for x in (hidden_ND, weight_VD))
    loss, others = _Weighted.apply(
        hidden_ND, weight_VD, labels_N, given_N, cap, ignore_index, chunk, wanted
    )
    return torch.cat((loss[None], others))


def weights_of(given_N: Tensor, losses_N: Tensor, cap: float | None) -> Tensor:
    """Return the weights of targets; arguments are those of :func:`weighted_cross_entropy`, of the same tokens."""
    given_N = given_N.to(losses_N.dtype)
    if cap is None:
        return given_N
    return (given_N - losses_N).exp().clamp(max=cap).masked_fill(given_N.isnan(), 1.0)


@torch.no_grad()
def separate_losses(
    hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, *, ignore_index: int = -100
) -> Tensor:
    """Return the loss of each token, fp32 [N] (fp64 for fp64 input) in nats, 0 without a label; without gradients.
    Arguments are those of :func:`weighted_cross_entropy`."""
    weight = weight_VD.to(product_dtype(hidden_ND))
    losses_N = hidden_ND.new_zeros(len(labels_N), dtype=softmax_dtype(hidden_ND))
    chunk = chunk_tokens(len(weight_VD))
    with without_autocast(hidden_ND.device.type):
        for at in range(0, len(labels_N), chunk):
            rows = slice(at, at + chunk)
            logits_CV = (hidden_ND[rows].to(weight.dtype) @ weight.t()).to(losses_N.dtype)
            losses_N[rows] = F.cross_entropy(
                logits_CV, labels_N[rows], ignore_index=ignore_index, reduction="none"
            )
    return losses_N


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        labels_N: Tensor,
        given_N: Tensor,
        cap: float | None,
        ignore_index: int,
        chunk: int,
        wanted: tuple[bool, bool],
    ) -> tuple[Tensor, Tensor]:
        for_hidden, for_weight = wanted
        dtype = product_dtype(hidden_ND)
        sums = hidden_ND.new_zeros(3, dtype=softmax_dtype(hidden_ND))
        d_hidden_ND = torch.zeros_like(hidden_ND) if for_hidden else None
        sum_VD: Tensor | None = None
        weight = weight_VD.to(dtype)
        ignored_N = labels_N == ignore_index
        blank = blank_chunks(ignored_N, chunk)
        with without_autocast(hidden_ND.device.type):
            for at, skipped in zip(range(0, len(labels_N), chunk), blank, strict=False):
                if skipped:
                    continue
                rows = slice(at, at + chunk)
                ignored_C = ignored_N[rows]
                labels_C = labels_N[rows]
                # zeros instead of the padding's values: 0 x NaN would reach the weight's gradient
                hidden_CD = hidden_ND[rows].to(dtype).masked_fill(ignored_C[:, None], 0)
                log_p_CV = torch.log_softmax(hidden_CD @ weight.t(), dim=-1, dtype=sums.dtype)
                losses_C = F.nll_loss(
                    log_p_CV, labels_C, ignore_index=ignore_index, reduction="none"
                )
                weights_C = weights_of(given_N[rows], losses_C, cap).masked_fill(ignored_C, 0)
                sums += torch.stack(((weights_C * losses_C).sum(), losses_C.sum(), weights_C.sum()))
                if not (for_hidden or for_weight):
                    continue
                # the derivative by the logits, weight times (softmax minus one-hot), in the memory of the logarithms
                slope_CV = log_p_CV.exp_()
                tokens_C = torch.arange(len(labels_C), device=labels_C.device)
                slope_CV[tokens_C, labels_C.masked_fill(ignored_C, 0)] -= 1
                d_logits_CV = slope_CV.mul_(weights_C[:, None]).to(dtype)
                del log_p_CV, slope_CV
                if d_hidden_ND is not None:
                    d_hidden_ND[rows] = d_logits_CV @ weight
                if for_weight:
                    sum_VD = add_product(sum_VD, d_logits_CV.t(), hidden_CD)
        d_weight = kept_gradient(sum_VD, weight_VD) if for_weight else None
        ctx.save_for_backward(d_hidden_ND, d_weight)
        ctx.dtypes = (hidden_ND.dtype, weight_VD.dtype)
        loss, others = sums[0].clone(), sums[1:].clone()
        ctx.mark_non_differentiable(others)
        return loss, others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        kept = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        found = [
            None if each is None else scaled_gradient(each, factor, dtype) for each, dtype in kept
        ]
        return (*found, None, None, None, None, None, None)
