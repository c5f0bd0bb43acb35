"""The Triton form of ``rotate``: one program turns a block of tokens in all heads that share one state.

The state is read once for the R heads of its group, ``e = start + deviation`` is formed in registers, and each tensor
is read or written once: both kernels are bound by memory alone.

Shape letters: B batch, T tokens, H heads of what is rotated, G key/value heads, R = H / G, K head size.
"""

# mypy: disable-error-code="no-untyped-def"
# Arguments of a kernel have no Python type: Triton compiles it for what it is launched with.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tape_ds.kernels.jit import INTERPRETER, jit, tl, triton, why_not
from tape_ds.kernels.launch import Launch, Table, choose, padded
from tape_ds.kernels.strides import rows, strides

# Both kernels': nothing is looped over but the heads of a group
LAUNCHES: Table = {
    **{(capability, 128): (Launch(8, 0, 4), Launch(16, 0, 4)) for capability in (80, 90)},
    **{(capability, 64): (Launch(16, 0, 4), Launch(32, 0, 4)) for capability in (80, 90)},
    **{(capability, 32): (Launch(32, 0, 4), Launch(64, 0, 4)) for capability in (80, 90)},
    **{(capability, 16): (Launch(64, 0, 4),) for capability in (80, 90)},
    **{(INTERPRETER, width): (Launch(32, 0),) for width in (16, 32, 64, 128)},
}


@jit
def _halves(base, tokens, stride, present, HALF: tl.constexpr, COLUMNS: tl.constexpr):
    """Both halves [tokens, COLUMNS] of the rows of one head, in fp32; zero where there is nothing."""
    columns = tl.arange(0, COLUMNS)[None, :]
    mask = present[:, None] & (columns < HALF)
    places = base + tokens[:, None] * stride + columns
    first = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(places + HALF, mask=mask, other=0.0).to(tl.float32)
    return first, second


@jit
def _store(base, tokens, stride, present, first, second, HALF: tl.constexpr, COLUMNS: tl.constexpr):
    """Write both halves of the rows of one head, rounded once."""
    columns = tl.arange(0, COLUMNS)[None, :]
    mask = present[:, None] & (columns < HALF)
    places = base + tokens[:, None] * stride + columns
    tl.store(places, first.to(base.dtype.element_ty), mask=mask)
    tl.store(places + HALF, second.to(base.dtype.element_ty), mask=mask)


@jit
def _state(
    START, STATE,
    batch, group, tokens, start_batch, start_group, start_token, state_batch, state_group, state_token, present,
    HALF: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Cosines and sines of ``start + state``."""
    cos, sin = _halves(
        START + batch * start_batch + group * start_group,
        tokens,
        start_token,
        present,
        HALF,
        COLUMNS,
    )
    if STATE is not None:
        base = STATE + batch * state_batch + group * state_group
        d_cos, d_sin = _halves(base, tokens, state_token, present, HALF, COLUMNS)
        cos += d_cos
        sin += d_sin
    return cos, sin


@jit
def rotate_kernel(
    X, START, STATE, OUT, T,
    repeats, x_batch, x_head, x_token, start_batch, start_group, start_token, state_batch, state_group, state_token,
    out_batch, out_head, out_token,
    HALF: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Turn ROWS tokens in the ``repeats`` heads of one group of one row; grid (blocks, groups, batch)."""
    tokens = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    present = tokens < T
    cos, sin = _state(
        START, STATE, batch, group, tokens, start_batch, start_group, start_token,
        state_batch, state_group, state_token, present, HALF, COLUMNS,
    )  # fmt: skip
    for head in tl.range(group * repeats, (group + 1) * repeats):
        real, imaginary = _halves(
            X + batch * x_batch + head * x_head, tokens, x_token, present, HALF, COLUMNS
        )
        turned_real = real * cos - imaginary * sin
        turned_imaginary = imaginary * cos + real * sin
        base = OUT + batch * out_batch + head * out_head
        _store(base, tokens, out_token, present, turned_real, turned_imaginary, HALF, COLUMNS)


@jit
def rotate_backward_kernel(
    GRAD, X, START, STATE, DX, DSTATE, T,
    repeats, grad_batch, grad_head, grad_token, x_batch, x_head, x_token, start_batch, start_group, start_token,
    state_batch, state_group, state_token, dx_batch, dx_head, dx_token, dstate_batch, dstate_group, dstate_token,
    HALF: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Turn ROWS tokens of the gradient back (DX), and sum what the state did to the heads of its group (DSTATE)."""
    tokens = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    present = tokens < T
    if DX is not None:
        cos, sin = _state(
            START, STATE, batch, group, tokens, start_batch, start_group, start_token,
            state_batch, state_group, state_token, present, HALF, COLUMNS,
        )  # fmt: skip
    d_cos = tl.zeros([ROWS, COLUMNS], tl.float32)
    d_sin = tl.zeros([ROWS, COLUMNS], tl.float32)
    for head in tl.range(group * repeats, (group + 1) * repeats):
        base = GRAD + batch * grad_batch + head * grad_head
        grad_real, grad_imaginary = _halves(base, tokens, grad_token, present, HALF, COLUMNS)
        if DX is not None:
            d_real = grad_real * cos + grad_imaginary * sin
            d_imaginary = grad_imaginary * cos - grad_real * sin
            base = DX + batch * dx_batch + head * dx_head
            _store(base, tokens, dx_token, present, d_real, d_imaginary, HALF, COLUMNS)
        if DSTATE is not None:
            real, imaginary = _halves(
                X + batch * x_batch + head * x_head, tokens, x_token, present, HALF, COLUMNS
            )
            d_cos += grad_real * real + grad_imaginary * imaginary
            d_sin += grad_imaginary * real - grad_real * imaginary
    if DSTATE is not None:
        base = DSTATE + batch * dstate_batch + group * dstate_group
        _store(base, tokens, dstate_token, present, d_cos, d_sin, HALF, COLUMNS)


def forward(x: Tensor, start: Tensor, state: Tensor | None, out: Tensor) -> None:
    """Write the rotation of x [B, H, T, K] to ``out`` [B, H, T, K]."""
    batch, heads, tokens, width = x.shape
    groups = start.shape[1] if state is None else state.shape[1]
    x, start, state = rows(x), rows(start), None if state is None else rows(state)

    def run(launch: Launch) -> None:
        rotate_kernel[triton.cdiv(tokens, launch.rows), groups, batch](
            x, start, state, out, tokens, heads // groups,
            *strides(x), *strides(start), *strides(state), *strides(out),
            HALF=width // 2, COLUMNS=padded(width // 2), ROWS=launch.rows, **launch.options,
        )  # fmt: skip

    with torch.cuda.device_of(x):
        run(_choose("rotate", x, groups, run))


def backward(
    grad: Tensor,
    x: Tensor | None,
    start: Tensor,
    state: Tensor | None,
    d_x: Tensor | None,
    d_state: Tensor | None,
) -> None:
    """Write the gradients that have memory; only the state's needs ``x``."""
    batch, heads, tokens, width = grad.shape
    groups = start.shape[1] if state is None else state.shape[1]
    grad, start = rows(grad), rows(start)
    x, state = (None if each is None else rows(each) for each in (x, state))

    def run(launch: Launch) -> None:
        rotate_backward_kernel[triton.cdiv(tokens, launch.rows), groups, batch](
            grad, x, start, state, d_x, d_state, tokens, heads // groups,
            *strides(grad), *strides(x), *strides(start), *strides(state), *strides(d_x), *strides(d_state),
            HALF=width // 2, COLUMNS=padded(width // 2), ROWS=launch.rows, **launch.options,
        )  # fmt: skip

    with torch.cuda.device_of(grad):
        run(_choose("rotate backward", grad, groups, run))


def fits(x: Tensor) -> bool:
    """Return whether the kernels take ``x``: its device and dtype, not empty, K at most 256."""
    return x.is_cuda and why_not(x) is None and x.numel() > 0 and x.shape[-1] <= 256


def _choose(name: str, x: Tensor, groups: int, run: Callable[[Launch], None]) -> Launch:
    shape = (*x.shape, groups, x.dtype)
    return choose(name, LAUNCHES, x.device, padded(x.shape[-1] // 2), shape, run)
