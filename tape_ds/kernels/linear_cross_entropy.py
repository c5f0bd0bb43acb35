"""The output head and its cross-entropy as one operator, a chunk of tokens at a time.

Logits are the largest tensor of a training step: 131,072 tokens and 32,000 entries are 16.8 GB in fp32, besides the
16-bit ones and their gradient. Here only one chunk of them exists, forward or backward. The gradients are computed in
the forward, where the logits are, and the backward only scales them, as in Liger (FusedLinearCrossEntropy, Hsu et al.
2024, arXiv:2410.10989); from one to the other [N, D] is kept, and [V, D] where the weight is trained. Matrix products
take their operands in the dtype that ``F.linear`` would; only the softmax is fp32.

Shape letters: N tokens, C tokens of a chunk, D hidden size, V entries of the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from tape_ds.kernels.autocast import without_autocast
from tape_ds.kernels.operators import operator
from tape_ds.kernels.reference import upcast

# fp32 logits of one chunk: 1,024 tokens at 32,000 entries, 256 at 128,256. Large enough for matrix products that fill a
# GPU (and fewer passes over the fp32 sum of a trained weight's gradient), small next to a model that needs this.
CHUNK_BYTES = 128 * 2**20
CHUNK_MULTIPLE = 128  # a chunk is a multiple of this, and at least this: rows of the usual tile of a matrix product
# elements of a 16-bit gradient that are fp32 at one time while the backward scales it
SCALED_ELEMENTS = 2**24


def chunk_tokens(vocabulary: int) -> int:
    """Return tokens whose fp32 logits fit into :data:`CHUNK_BYTES`, in whole :data:`CHUNK_MULTIPLE`, at least one of
    them."""
    return max(1, CHUNK_BYTES // (4 * vocabulary * CHUNK_MULTIPLE)) * CHUNK_MULTIPLE


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    *,
    ignore_index: int = -100,
    chunk: int | None = None,
) -> Tensor:
    """Return sum of ``F.cross_entropy(F.linear(hidden, weight).float(), labels)`` over the tokens that have a label.

    Under autocast the products are in its dtype, as ``F.linear``'s are, and each gradient still comes in the dtype of
    its own tensor. The weight's gradient is summed over the chunks in fp32. Nothing is computed for gradients that
    are not needed, nor for a chunk without labels; there is no second derivative.

    Args:
        hidden_ND: what the head reads.
        weight_VD: the head's matrix, of the same dtype but for autocast.
        labels_N: int64, in [0, V), or ``ignore_index``.
        ignore_index: label of tokens that predict nothing; their hidden rows, even NaN, have no effect.
        chunk: tokens whose logits exist at once; default :func:`chunk_tokens`.

    Returns:
        fp32 scalar (fp64 for fp64 input), in nats; 0 where no token has a label.
    """
    fits = hidden_ND.ndim == weight_VD.ndim == 2 and labels_N.ndim == 1
    if (
        not fits
        or hidden_ND.shape[1] != weight_VD.shape[1]
        or hidden_ND.shape[0] != labels_N.shape[0]
    ):
        shapes = ", ".join(str(tuple(x.shape)) for x in (hidden_ND, weight_VD, labels_N))
        raise ValueError(f"hidden [N, D], weight [V, D] and labels [N] are needed, not {shapes}")
    chunk = chunk_tokens(weight_VD.shape[0]) if chunk is None else chunk
    if chunk < 1:
        raise ValueError(f"chunk = {chunk}: give 1 token or more")
    dtype = product_dtype(hidden_ND)
    wanted = [torch.is_grad_enabled() and x.requires_grad for x in (hidden_ND, weight_VD)]
    loss, _, _ = _chunked(hidden_ND, weight_VD, labels_N, ignore_index, chunk, dtype, *wanted)
    return loss


@operator("tape_ds::linear_cross_entropy")
def _chunked(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    ignore_index: int,
    chunk: int,
    dtype: torch.dtype,
    for_hidden: bool,
    for_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss and both gradients of it; a gradient that is not needed is empty."""
    loss = hidden_ND.new_zeros((), dtype=softmax_dtype(hidden_ND))
    weight = weight_VD.to(dtype)
    ignored_N = labels_N == ignore_index
    blank = blank_chunks(ignored_N, chunk)
    d_hidden_ND: Tensor | None = None
    sum_VD: Tensor | None = None
    with without_autocast(hidden_ND.device.type):
        for at, skipped in zip(range(0, len(labels_N), chunk), blank, strict=False):
            if skipped:
                continue
            rows = slice(at, at + chunk)
            ignored_C1, labels_C = ignored_N[rows, None], labels_N[rows]
            # Zeros instead of the padding's values: 0 x NaN would reach the weight's gradient.
            hidden_CD = hidden_ND[rows].to(dtype).masked_fill(ignored_C1, 0)
            logits_CV = hidden_CD @ weight.t()
            log_p_CV = torch.log_softmax(logits_CV, dim=-1, dtype=loss.dtype)
            del logits_CV
            loss += F.nll_loss(log_p_CV, labels_C, ignore_index=ignore_index, reduction="sum")
            if not (for_hidden or for_weight):
                continue
            # the derivative by the logits, softmax minus one-hot, in the memory of the logarithms
            p_CV = log_p_CV.exp_()
            p_CV[
                torch.arange(len(labels_C), device=labels_C.device),
                labels_C.masked_fill(ignored_C1[:, 0], 0),
            ] -= 1
            d_logits_CV = p_CV.to(dtype)
            del log_p_CV, p_CV
            if for_hidden:
                d_hidden_CD = (d_logits_CV @ weight).masked_fill_(ignored_C1, 0)
                if len(blank) == 1:
                    # all tokens: no memory to put them into
                    d_hidden_ND = d_hidden_CD.to(hidden_ND.dtype)
                else:
                    if d_hidden_ND is None:
                        d_hidden_ND = hidden_ND.new_zeros(hidden_ND.shape)
                    d_hidden_ND[rows] = d_hidden_CD
            if for_weight:
                sum_VD = add_product(sum_VD, d_logits_CV.t(), hidden_CD)
    if d_hidden_ND is None:
        # not needed, or no token had a label
        d_hidden_ND = hidden_ND.new_zeros(hidden_ND.shape if for_hidden else (0,))
    if for_weight:
        return loss, d_hidden_ND, kept_gradient(sum_VD, weight_VD)
    return loss, d_hidden_ND, weight_VD.new_empty((0,), dtype=kept_dtype(weight_VD))


def blank_chunks(ignored_N: Tensor, chunk: int) -> list[bool]:
    """Return which chunks have no label: one wait for the device, whatever their number. A CUDA graph cannot wait, and
    computes them all."""
    chunks = ignored_N.split(chunk)
    if ignored_N.is_cuda and torch.cuda.is_current_stream_capturing():
        return [False] * len(chunks)
    return torch.stack([piece.all() for piece in chunks]).tolist()


@_chunked.register_fake
def _(hidden_ND: Tensor, weight_VD: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, for_hidden, for_weight = others
    loss = hidden_ND.new_empty((), dtype=softmax_dtype(hidden_ND))
    d_hidden = hidden_ND.new_empty(hidden_ND.shape if for_hidden else (0,))
    return (
        loss,
        d_hidden,
        weight_VD.new_empty(weight_VD.shape if for_weight else (0,), dtype=kept_dtype(weight_VD)),
    )


def kept_dtype(weight_VD: Tensor) -> torch.dtype:
    """Return the dtype in which a weight's gradient waits for the backward: that of the weight, but fp32 for fp16,
    which cannot hold a sum over all tokens that is not a mean yet."""
    return torch.float32 if weight_VD.dtype == torch.float16 else weight_VD.dtype


def kept_gradient(sum_VD: Tensor | None, weight_VD: Tensor) -> Tensor:
    """Return the sum of a weight's gradient over all chunks, None if no token had a label, as the backward finds it."""
    if sum_VD is None:
        return weight_VD.new_zeros(weight_VD.shape, dtype=kept_dtype(weight_VD))
    return sum_VD.to(kept_dtype(weight_VD))


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the operands' dtype in ``F.linear(x, ...)``: autocast's if it is on."""
    device = x.device.type
    # which meta tensors do not have
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast and x.dtype != torch.float64 else x.dtype


def softmax_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def add_product(sum_VD: Tensor | None, left_VC: Tensor, right_CD: Tensor) -> Tensor:
    """``sum + left @ right`` in at least fp32, in the sum's memory where there is one; the product itself stays on
    16-bit operands."""
    if left_VC.dtype in (torch.float32, torch.float64):
        return left_VC @ right_CD if sum_VD is None else sum_VD.addmm_(left_VC, right_CD)
    # no product of 16-bit operands comes in fp32 here, and fp16 may not hold it
    if left_VC.device.type != "cuda":
        if left_VC.dtype == torch.float16:
            left_VC, right_CD = left_VC.float(), right_CD.float()
        product_VD = left_VC @ right_CD
        return product_VD.float() if sum_VD is None else sum_VD.add_(product_VD)
    if sum_VD is None:
        return torch.mm(left_VC, right_CD, out_dtype=torch.float32)
    return torch.addmm(sum_VD, left_VC, right_CD, out_dtype=torch.float32, out=sum_VD)


def _keep_gradients(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    _, d_hidden, d_weight = output
    ctx.mark_non_differentiable(d_hidden, d_weight)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(d_hidden, d_weight)
    ctx.dtypes, ctx.wanted = [x.dtype for x in inputs[:2]], inputs[-2:]


@once_differentiable
def _scale_gradients(ctx: Any, factor: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    found: list[Tensor | None] = [None, None]
    if factor is not None:
        for index, gradient in enumerate(ctx.saved_tensors):
            if ctx.wanted[index]:
                found[index] = scaled_gradient(gradient, factor, ctx.dtypes[index])
    return (*found, None, None, None, None, None, None)


_chunked.register_autograd(_scale_gradients, setup_context=_keep_gradients)


@operator("tape_ds::scaled_gradient")
def scaled_gradient(gradient_RD: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """``gradient * factor`` with the factor unrounded: torch rounds a scalar tensor to the other operand's 16 bits, and
    all gradients of a step would be off by up to 0.4 %."""
    if gradient_RD.dtype == dtype == factor.dtype:
        return gradient_RD * factor
    scaled_RD = torch.empty_like(gradient_RD, dtype=dtype)
    rows = max(1, SCALED_ELEMENTS // max(1, gradient_RD.shape[1]))
    for piece, into in zip(gradient_RD.split(rows), scaled_RD.split(rows), strict=True):
        into.copy_(upcast(piece) * factor)
    return scaled_RD


@scaled_gradient.register_fake
def _(gradient_RD: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(gradient_RD, dtype=dtype)
