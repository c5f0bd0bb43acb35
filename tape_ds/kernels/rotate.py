"""Queries and keys rotated by the position state, forward and backward, as one operator.

The state is ``e = start + deviation``: ``start`` is a shared fp32 table, the deviation is what the layers learned. The
operator reads both, so ``e`` is never stored, and it keeps nothing for the backward but its own inputs. On a GPU it is
a Triton kernel (``rotate_triton.py``), elsewhere the PyTorch form of this file, which bounds its temporaries by working
on a piece of the tokens at a time, and never duplicates halves to K columns of cosines and of sines. A graph compiled
for a CPU gets the plain formula where nothing is learned: the compiler fuses it with what is around it.

Shape letters: B batch, T tokens, H heads of what is rotated, G key/value heads (one state each), R = H / G heads that
share a state, K head size.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tape_ds.kernels import reference, rotate_triton
from tape_ds.kernels.operators import operator
from tape_ds.kernels.strides import empty_rows

# Elements of ``x`` that the PyTorch form works on at a time on a CPU: 8 MiB of fp32. Smaller pieces lose more to calls
# than they gain in the cache (measured at 12 heads of 2,048 tokens: half the speed at 2^17, the same from 2^20 on).
CHUNK = 1 << 21
DEVICE_CHUNK = 1 << 24  # on any other device, where every piece costs several launches


def rotate(x_BHTK: Tensor, start_B1TK: Tensor, state_BGTK: Tensor | None = None) -> Tensor:
    """Rotate each pair (j, j + K/2) of a head by the state of its group (RoFormer, arXiv:2104.09864; TAPE,
    arXiv:2501.00712, Section 3.3).

    Arithmetic is fp32 (fp64 for fp64 input), rounded once to ``x``'s dtype. Differentiable in ``x`` and ``state``; the
    backward keeps ``x`` only where ``state`` needs a gradient.

    Args:
        x_BHTK: queries or keys; head h belongs to group h // (H / G).
        start_B1TK: fp32 [B or 1, 1 or G, T, K], cosines in the first K/2 columns, sines in the last. Never needs a
            gradient.
        state_BGTK: deviation from the start, any float dtype; None is zero.

    Returns:
        [B, H, T, K] in the dtype of ``x``, and in its memory layout where rows of that are contiguous.
    """
    batch, heads, tokens, width = x_BHTK.shape
    groups = start_B1TK.shape[1] if state_BGTK is None else state_BGTK.shape[1]
    if width % 2 or heads % groups:
        raise ValueError(
            f"cannot rotate {heads} heads of {width} columns by {groups} states: give pairs and groups"
        )
    if state_BGTK is not None and state_BGTK.shape != (batch, groups, tokens, width):
        raise ValueError(
            f"state is {tuple(state_BGTK.shape)}, not {(batch, groups, tokens, width)}"
        )
    rows, shared = start_B1TK.shape[:2]
    if (
        start_B1TK.shape[2:] != (tokens, width)
        or rows not in (1, batch)
        or shared not in (1, groups)
    ):
        raise ValueError(
            f"start is {tuple(start_B1TK.shape)}, not [{batch} or 1, {groups} or 1, {tokens}, {width}]"
        )
    # an operator is a wall in a graph: compiled, a step of a small Llama took a fifth longer with it than without
    is_compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if is_compiled and x_BHTK.is_cpu and state_BGTK is None:
        return reference.rotate(x_BHTK, start_B1TK)
    return _rotate(x_BHTK, start_B1TK, state_BGTK)


@operator("tape_ds::rotate", schema="(Tensor x, Tensor start, Tensor? state) -> Tensor")
def _rotate(x: Tensor, start: Tensor, state: Tensor | None) -> Tensor:
    out = _empty_like(x)
    (rotate_triton.forward if rotate_triton.fits(x) else forward)(x, start, state, out)
    return out


@operator(
    "tape_ds::rotate_backward",
    schema="(Tensor grad, Tensor? x, Tensor start, Tensor? state, bool for_x, bool for_state) -> Tensor[]",
)
def _rotate_backward(
    grad: Tensor,
    x: Tensor | None,
    start: Tensor,
    state: Tensor | None,
    for_x: bool,
    for_state: bool,
) -> list[Tensor]:
    d_x, d_state = empty_gradients(grad, state, for_x, for_state)
    (rotate_triton.backward if rotate_triton.fits(grad) else backward)(
        grad, x, start, state, d_x, d_state
    )
    return [each for each in (d_x, d_state) if each is not None]


@_rotate.register_fake
def _(x: Tensor, start: Tensor, state: Tensor | None) -> Tensor:
    return _empty_like(x)


@_rotate_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor | None,
    start: Tensor,
    state: Tensor | None,
    for_x: bool,
    for_state: bool,
) -> list[Tensor]:
    return [each for each in empty_gradients(grad, state, for_x, for_state) if each is not None]


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, start, state = inputs
    ctx.save_for_backward(x if ctx.needs_input_grad[2] else None, start, state)


def _differentiate(ctx, grad):  # type: ignore[no-untyped-def]
    x, start, state = ctx.saved_tensors
    for_x, _, for_state = ctx.needs_input_grad
    gradients = iter(_rotate_backward(grad, x, start, state, for_x, for_state))
    return next(gradients) if for_x else None, None, next(gradients) if for_state else None


_rotate.register_autograd(_differentiate, setup_context=_save)


def empty_gradients(
    grad: Tensor, state: Tensor | None, for_x: bool, for_state: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return memory for the gradients that are needed; that of ``x`` is [B, T, H, K] seen as [B, H, T, K]."""
    return empty_rows(grad) if for_x else None, _empty_like(
        state
    ) if for_state and state is not None else None


def _empty_like(x: Tensor) -> Tensor:
    """Memory laid out like ``x``, but with contiguous rows: kernels write no others."""
    return torch.empty_like(x) if x.stride(-1) == 1 else x.new_empty(x.shape)


def backward(
    grad: Tensor,
    x: Tensor | None,
    start: Tensor,
    state: Tensor | None,
    d_x: Tensor | None,
    d_state: Tensor | None,
) -> None:
    """The PyTorch form of those gradients that have memory: of ``x`` the rotation back, of the state a sum over the
    heads of a group, which alone reads ``x``."""
    if d_x is not None:
        forward(grad, start, state, d_x, backwards=True)
    if d_state is not None:
        assert x is not None
        wide = _wide(grad, x, d_state)
        for grad_piece, x_piece, out in _pieces(grad, x, d_state):
            _differentiate_state(grad_piece.to(wide), x_piece.to(wide), out, wide)


def _differentiate_state(
    grad_BHTK: Tensor, x_BHTK: Tensor, out_BGTK: Tensor, wide: torch.dtype
) -> None:
    result = out_BGTK if out_BGTK.dtype == wide else torch.empty_like(out_BGTK, dtype=wide)
    d_cos, d_sin = result.chunk(2, dim=-1)
    groups = out_BGTK.shape[1]
    if groups == x_BHTK.shape[1]:
        _add_products(grad_BHTK, x_BHTK, d_cos, d_sin, is_first=True)
    else:
        grad_BGRTK = grad_BHTK.unflatten(1, (groups, -1))
        x_BGRTK = x_BHTK.unflatten(1, (groups, -1))
        for head in range(x_BGRTK.shape[2]):
            _add_products(
                grad_BGRTK[:, :, head], x_BGRTK[:, :, head], d_cos, d_sin, is_first=head == 0
            )
    if result is not out_BGTK:
        out_BGTK.copy_(result)


def _add_products(
    grad_BGTK: Tensor, x_BGTK: Tensor, d_cos: Tensor, d_sin: Tensor, is_first: bool
) -> None:
    """dc += g_r x_r + g_i x_i, ds += g_i x_r - g_r x_i, of one head of each group."""
    grad_real, grad_imaginary = grad_BGTK.chunk(2, dim=-1)
    real, imaginary = x_BGTK.chunk(2, dim=-1)
    if is_first:
        torch.mul(grad_real, real, out=d_cos)
        torch.mul(grad_imaginary, real, out=d_sin)
    else:
        d_cos.addcmul_(grad_real, real)
        d_sin.addcmul_(grad_imaginary, real)
    d_cos.addcmul_(grad_imaginary, imaginary)
    d_sin.addcmul_(grad_real, imaginary, value=-1)


def _wide(x: Tensor, *others: Tensor | None) -> torch.dtype:
    for each in (x, *others):
        if each is not None and each.dtype == torch.float64:
            return torch.float64
    return torch.float32


def _pieces(x_BHTK: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Yield all tensors for about ``CHUNK`` elements of ``x`` at a time: as they are, where that is all of them."""
    tokens = x_BHTK.shape[2]
    chunk = CHUNK if x_BHTK.device.type == "cpu" else DEVICE_CHUNK
    if x_BHTK.numel() <= chunk:
        yield x_BHTK, *others
        return
    step = max(1, chunk // x_BHTK[:, :, :1].numel())
    for first in range(0, tokens, step):
        count = min(step, tokens - first)
        yield tuple(
            None if each is None else each.narrow(2, first, count) for each in (x_BHTK, *others)
        )


def forward(
    x_BHTK: Tensor,
    start_B1TK: Tensor,
    state_BGTK: Tensor | None,
    out_BHTK: Tensor,
    backwards: bool = False,
) -> None:
    """Write the rotation, or the rotation back, to ``out``."""
    wide = _wide(x_BHTK, state_BGTK)
    for x, start, state, out in _pieces(x_BHTK, start_B1TK, state_BGTK, out_BHTK):
        e = start.to(wide)
        if state is not None:
            e = e + state
        result = out if out.dtype == wide else torch.empty_like(x, dtype=wide)
        _turn(x.to(wide), e, result, backwards)
        if result is not out:
            out.copy_(result)


def _turn(x_BHTK: Tensor, e_BGTK: Tensor, out_BHTK: Tensor, backwards: bool) -> None:
    groups = e_BGTK.shape[1]
    if groups not in (1, x_BHTK.shape[1]):
        # [B, G, R, T, K], and the state [B, G, 1, T, K], which all R heads of its group read
        x_BHTK = x_BHTK.unflatten(1, (groups, -1))
        out_BHTK = out_BHTK.unflatten(1, (groups, -1))
        e_BGTK = e_BGTK.unsqueeze(2)
    cos, sin = e_BGTK.chunk(2, dim=-1)
    real, imaginary = x_BHTK.chunk(2, dim=-1)
    out_real, out_imaginary = out_BHTK.chunk(2, dim=-1)
    sign = 1 if backwards else -1
    torch.mul(real, cos, out=out_real).addcmul_(imaginary, sin, value=sign)
    torch.mul(imaginary, cos, out=out_imaginary).addcmul_(real, sin, value=-sign)
