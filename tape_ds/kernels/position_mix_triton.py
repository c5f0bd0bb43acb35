"""The Triton form of ``position_mix``: one pass over the state, one small matrix per token in registers.

A program takes a block of tokens, one after the other. A token's state is a [G, K] matrix, and the feed-forward is
``M = contract diag(SiLU(gate)) expand``, [G, G], a quarter of the arithmetic of going through [I, K]. The forward forms
M in registers, from weights that a program loads once; where these are too large for registers, and in the backward
(where they would spill), one ordinary product makes M for all tokens, a quarter of a state in memory for 32 heads of
128. The backward kernel writes the gradient of every M; those of the gate and of the pair are ordinary
products of that again, [B T, G G] by [G G, I] and [I, B T] by [B T, G G], at a vendor library's full speed. The
gradient of ``attend`` is summed over a program's tokens into one row of an fp32 buffer, and PyTorch adds the rows up,
always in the same order: nothing is atomic.

Shape letters: B batch, T tokens, H query heads, G key/value heads, K head size, I position rank. The kernels' names of
the powers of 2 that hold them: HEAD_ROWS, GROUP_ROWS, COLUMNS, RANKS.
"""

# mypy: disable-error-code="no-untyped-def"
# Arguments of a kernel have no Python type: Triton compiles it for what it is launched with.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tape_ds.kernels.jit import INTERPRETER, jit, tl, triton, why_not
from tape_ds.kernels.launch import Launch, Table, choose, padded
from tape_ds.kernels.pair_modulus import LEAST
from tape_ds.kernels.position_mix_inputs import Inputs, empty
from tape_ds.kernels.position_mix_plain import product, split
from tape_ds.kernels.strides import near, strides

# By the padded number of groups; columns are channels. A warp for every 16 groups: more would repeat each other.
FORWARD: Table = {
    **{(capability, 16): (Launch(8, 32, 1), Launch(8, 32, 2)) for capability in (80, 90)},
    **{(capability, 32): (Launch(8, 64, 4), Launch(8, 128, 8)) for capability in (80, 90)},
    **{(capability, 64): (Launch(8, 32, 4),) for capability in (80, 90)},
    **{(INTERPRETER, groups): (Launch(4, 32),) for groups in (16, 32, 64)},
}
# Of pairs, half as many columns of each number. Fewer warps spill: of 16 groups under Triton 3.9, of 32 with one token.
FORWARD_UNIT: Table = {
    **FORWARD,
    **{(capability, 16): (Launch(8, 64, 4),) for capability in (80, 90)},
    (80, 32): FORWARD[80, 32][1:],
}
# By the padded larger of G and H / 2: with several query heads for a group, their tiles are what registers hold
BACKWARD: Table = {
    **{(capability, 16): (Launch(8, 16, 1), Launch(16, 16, 1)) for capability in (80, 90)},
    **{(capability, 32): (Launch(8, 32, 2, 1), Launch(8, 32, 4)) for capability in (80, 90)},
    **{(capability, 64): (Launch(8, 16, 4),) for capability in (80, 90)},
    **{(INTERPRETER, most): (Launch(4, 32),) for most in (16, 32, 64)},
}


@jit
def _matrix(
    base,
    stride,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    left=0,
):
    """COLUMNS of a [HEIGHT, WIDTH] matrix from ``left`` on, zeros beyond its edges; a stride of 0 repeats one row."""
    row, column = tl.arange(0, ROWS)[:, None], left + tl.arange(0, COLUMNS)[None, :]
    return tl.load(base + row * stride + column, mask=(row < HEIGHT) & (column < WIDTH), other=0.0)


@jit
def _store(
    base,
    stride,
    value,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    left=0,
):
    """Write what :func:`_matrix` reads, rounded once."""
    row, column = tl.arange(0, ROWS)[:, None], left + tl.arange(0, COLUMNS)[None, :]
    mask = (row < HEIGHT) & (column < WIDTH)
    tl.store(base + row * stride + column, value.to(base.dtype.element_ty), mask=mask)


@jit
def _updated(
    START, STATE, MOVED,
    attend, matrix, start_group, state_group, moved_head, left,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, HEAD_ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """COLUMNS of one token from ``left`` on, of the WIDTH that the pointers begin: the start (where it is read), and
    the new deviation before its moduli are restored."""
    start = tl.zeros([GROUP_ROWS, COLUMNS], tl.float32)
    changed = tl.zeros([GROUP_ROWS, COLUMNS], tl.float32)
    if STATE is not None:
        changed += _matrix(STATE, state_group, GROUPS, WIDTH, GROUP_ROWS, COLUMNS, left).to(
            tl.float32
        )
    if MOVED is not None:
        moved = _matrix(MOVED, moved_head, HEADS, WIDTH, HEAD_ROWS, COLUMNS, left)
        changed = tl.dot(attend, moved, changed)
    if UNIT or matrix is not None:
        start = _matrix(START, start_group, GROUPS, WIDTH, GROUP_ROWS, COLUMNS, left).to(tl.float32)
    if matrix is not None:
        changed = tl.dot(matrix, (start + changed).to(matrix.dtype), changed)
    return start, changed


@jit
def _restored(cos_start, sin_start, cos, sin, cos_grad, sin_grad, LEAST: tl.constexpr):
    """The result of ``pair_modulus.py``: the deviations with their moduli restored, or, where gradients of those are
    given, the gradients of the deviations."""
    own = cos_start * cos_start + sin_start * sin_start
    own = tl.where(own > 0, own, 1.0)  # beyond the edges
    cos_state, sin_state = cos_start + cos, sin_start + sin
    squares = (cos_state * cos_state + sin_state * sin_state) / own
    root = tl.sqrt(tl.maximum(squares, LEAST))
    if cos_grad is None:
        change = ((cos_start + cos_state) * cos + (sin_start + sin_state) * sin) / own
        change = tl.maximum(change, LEAST - 1.0) / (root * (1.0 + root))
        return cos - change * cos_state, sin - change * sin_state
    else:
        along = (cos_grad * cos_state + sin_grad * sin_state) / (own * root * root)
        along = tl.where(squares > LEAST, along, 0.0)
        return (cos_grad - along * cos_state) / root, (sin_grad - along * sin_state) / root


@jit
def position_mix_kernel(
    START, STATE, MOVED, ATTEND, GATE, EXPAND, CONTRACT, MATRIX, GRAD, OUT, T,
    start_batch, start_group, start_token, state_batch, state_group, state_token, moved_batch, moved_head,
    moved_token, gate_batch, gate_token, grad_batch, grad_group, grad_token, out_batch, out_group, out_token,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, HEAD_ROWS: tl.constexpr,
    GROUP_ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANKS: tl.constexpr, TOKENS: tl.constexpr, UNIT: tl.constexpr,
    LEAST: tl.constexpr,
):  # fmt: skip
    """The new deviation of TOKENS tokens of one row; M is read where it is given as MATRIX [B T, G, G].

    UNIT: columns come in pairs, COLUMNS cosines and their sines at a time, and get their moduli back. Where GRAD is
    given, what is written is the gradient before that step instead: the backward's first step.
    """
    batch = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * TOKENS
    ranks = tl.arange(0, RANKS)
    attend = None
    if MOVED is not None:
        attend = _matrix(ATTEND, HEADS, GROUPS, HEADS, GROUP_ROWS, HEAD_ROWS).to(
            MOVED.dtype.element_ty
        )
    if GATE is not None:
        expand = _matrix(EXPAND, GROUPS, RANK, GROUPS, RANKS, GROUP_ROWS).to(GATE.dtype.element_ty)
        contract = _matrix(CONTRACT, RANK, GROUPS, RANK, GROUP_ROWS, RANKS).to(
            GATE.dtype.element_ty
        )
    for token in tl.range(first, tl.minimum(first + TOKENS, T)):
        matrix = None
        if GATE is not None:
            gate = tl.load(
                GATE + batch * gate_batch + token * gate_token + ranks, mask=ranks < RANK, other=0.0
            )
            gate = gate.to(tl.float32)
            gated = (contract.to(tl.float32) * (gate * tl.sigmoid(gate))[None, :]).to(expand.dtype)
            matrix = tl.dot(gated, expand).to(expand.dtype)
        if MATRIX is not None:
            place = MATRIX + (batch * T + token) * (GROUPS * GROUPS)
            matrix = _matrix(place, GROUPS, GROUPS, GROUPS, GROUP_ROWS, GROUP_ROWS)
        start_row = START + batch * start_batch + token * start_token
        state_row = None
        if STATE is not None:
            state_row = STATE + batch * state_batch + token * state_token
        moved_row = None
        if MOVED is not None:
            moved_row = MOVED + batch * moved_batch + token * moved_token
        out_row = OUT + batch * out_batch + token * out_token
        if UNIT:
            HALF: tl.constexpr = WIDTH // 2
            start_sines = start_row + HALF
            state_sines = None
            if STATE is not None:
                state_sines = state_row + HALF
            moved_sines = None
            if MOVED is not None:
                moved_sines = moved_row + HALF
            for left in tl.range(0, HALF, COLUMNS):
                cos_start, cos = _updated(
                    start_row, state_row, moved_row, attend, matrix, start_group, state_group, moved_head, left,
                    HEADS, GROUPS, HALF, HEAD_ROWS, GROUP_ROWS, COLUMNS, True,
                )  # fmt: skip
                sin_start, sin = _updated(
                    start_sines, state_sines, moved_sines, attend, matrix, start_group, state_group, moved_head, left,
                    HEADS, GROUPS, HALF, HEAD_ROWS, GROUP_ROWS, COLUMNS, True,
                )  # fmt: skip
                cos_grad = None
                sin_grad = None
                if GRAD is not None:
                    grad_row = GRAD + batch * grad_batch + token * grad_token
                    cos_grad = _matrix(
                        grad_row, grad_group, GROUPS, HALF, GROUP_ROWS, COLUMNS, left
                    ).to(tl.float32)
                    grad_row += HALF
                    sin_grad = _matrix(
                        grad_row, grad_group, GROUPS, HALF, GROUP_ROWS, COLUMNS, left
                    ).to(tl.float32)
                cos, sin = _restored(cos_start, sin_start, cos, sin, cos_grad, sin_grad, LEAST)
                _store(out_row, out_group, cos, GROUPS, HALF, GROUP_ROWS, COLUMNS, left)
                _store(out_row + HALF, out_group, sin, GROUPS, HALF, GROUP_ROWS, COLUMNS, left)
        else:
            for left in tl.range(0, WIDTH, COLUMNS):
                _, changed = _updated(
                    start_row, state_row, moved_row, attend, matrix, start_group, state_group, moved_head, left,
                    HEADS, GROUPS, WIDTH, HEAD_ROWS, GROUP_ROWS, COLUMNS, False,
                )  # fmt: skip
                _store(out_row, out_group, changed, GROUPS, WIDTH, GROUP_ROWS, COLUMNS, left)


@jit
def position_mix_backward_kernel(
    GRAD, START, STATE, MOVED, ATTEND, MATRIX, DMATRIX, DSTATE, DMOVED, SUMS, T,
    grad_batch, grad_group, grad_token, start_batch, start_group, start_token, state_batch, state_group, state_token,
    moved_batch, moved_head, moved_token, dstate_batch, dstate_group, dstate_token, dmoved_batch, dmoved_head,
    dmoved_token,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, HEAD_ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The gradients of TOKENS tokens of one row, and their share of ``attend``'s: one row of SUMS [programs, G, H].

    Channels do not meet each other, but in the sums: they are taken COLUMNS at a time, so that registers suffice.
    """
    batch = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * TOKENS
    if MOVED is not None:
        attend = _matrix(ATTEND, HEADS, GROUPS, HEADS, GROUP_ROWS, HEAD_ROWS).to(
            MOVED.dtype.element_ty
        )
        attend_sum = tl.zeros([GROUP_ROWS, HEAD_ROWS], tl.float32)
    for token in tl.range(first, tl.minimum(first + TOKENS, T)):
        if MATRIX is not None:
            place = (batch * T + token) * (GROUPS * GROUPS)
            matrix = _matrix(MATRIX + place, GROUPS, GROUPS, GROUPS, GROUP_ROWS, GROUP_ROWS)
        for left in tl.range(0, WIDTH, COLUMNS):
            base = GRAD + batch * grad_batch + token * grad_token
            d_added = _matrix(base, grad_group, GROUPS, WIDTH, GROUP_ROWS, COLUMNS, left).to(
                tl.float32
            )
            if MATRIX is not None:
                d_added = tl.dot(tl.trans(matrix), d_added.to(matrix.dtype), d_added)
            if DSTATE is not None:
                base = DSTATE + batch * dstate_batch + token * dstate_token
                _store(base, dstate_group, d_added, GROUPS, WIDTH, GROUP_ROWS, COLUMNS, left)
            if MOVED is not None:
                d_rounded = d_added.to(attend.dtype)
                if DMOVED is not None:
                    base = DMOVED + batch * dmoved_batch + token * dmoved_token
                    d_moved = tl.dot(tl.trans(attend), d_rounded)
                    _store(base, dmoved_head, d_moved, HEADS, WIDTH, HEAD_ROWS, COLUMNS, left)
                if SUMS is not None:
                    base = MOVED + batch * moved_batch + token * moved_token
                    moved = _matrix(base, moved_head, HEADS, WIDTH, HEAD_ROWS, COLUMNS, left)
                    attend_sum = tl.dot(d_rounded, tl.trans(moved), attend_sum)
        if DMATRIX is not None:
            # a separate loop, which reads again from the cache: in one loop, registers do not suffice
            d_matrix = tl.zeros([GROUP_ROWS, GROUP_ROWS], tl.float32)
            for left in tl.range(0, WIDTH, COLUMNS):
                base = GRAD + batch * grad_batch + token * grad_token
                grad = _matrix(base, grad_group, GROUPS, WIDTH, GROUP_ROWS, COLUMNS, left).to(
                    matrix.dtype
                )
                base = START + batch * start_batch + token * start_token
                x = _matrix(base, start_group, GROUPS, WIDTH, GROUP_ROWS, COLUMNS, left).to(
                    tl.float32
                )
                if STATE is not None:
                    base = STATE + batch * state_batch + token * state_token
                    x += _matrix(base, state_group, GROUPS, WIDTH, GROUP_ROWS, COLUMNS, left).to(
                        tl.float32
                    )
                if MOVED is not None:
                    base = MOVED + batch * moved_batch + token * moved_token
                    moved = _matrix(base, moved_head, HEADS, WIDTH, HEAD_ROWS, COLUMNS, left)
                    x = tl.dot(attend, moved, x)
                d_matrix = tl.dot(grad, tl.trans(x.to(matrix.dtype)), d_matrix)
            _store(DMATRIX + place, GROUPS, d_matrix, GROUPS, GROUPS, GROUP_ROWS, GROUP_ROWS)
    if SUMS is not None:
        own = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        _store(
            SUMS + own * (GROUPS * HEADS), HEADS, attend_sum, GROUPS, HEADS, GROUP_ROWS, HEAD_ROWS
        )


def fits(inputs: Inputs) -> bool:
    """Return whether the kernels run on these tensors: their device and dtypes, and sizes that registers hold."""
    activations = [x for x in (inputs.moved, inputs.gate) if x is not None]
    if any(not x.is_cuda or why_not(x) is not None or x.numel() == 0 for x in activations):
        return False
    groups, width = inputs.sizes()[1], inputs.sizes()[3]
    return width <= 128 and groups <= 64 and inputs.heads() <= 64 and inputs.wide() == torch.float32


def forward(inputs: Inputs, out: Tensor, unit: bool, grad: Tensor | None = None) -> None:
    """Write the new deviation to ``out`` [B, G, T, K]; or, from the gradient ``grad`` of one whose moduli were
    restored, the gradient before that step."""
    start, state, moved, attend, gate, expand, contract = inputs.with_rows()
    batch, groups, tokens, _ = inputs.sizes()
    matrix = None
    # At the default I = 4 G registers hold the pair of weights, and the kernel forms M itself.
    composes = padded(groups) <= 32 and padded(inputs.rank()) <= 4 * padded(groups)
    if gate is not None and not composes:
        matrix = F.silu(gate).flatten(0, 1) @ product(inputs, gate.dtype)
        gate = expand = contract = None
    gate_strides = (0, 0) if gate is None else gate.stride()[:2]

    def run(launch: Launch) -> None:
        position_mix_kernel[triton.cdiv(tokens, launch.rows), batch](
            start, state, moved, attend, gate, expand, contract, matrix, grad, out, tokens,
            *strides(start), *strides(state), *strides(moved), *gate_strides, *strides(grad), *strides(out),
            **_constants(position_mix_kernel, launch, *inputs.model(), unit), **launch.options,
        )  # fmt: skip

    with torch.cuda.device_of(out):
        shape = (*_shape(inputs), unit, grad is None)
        table = FORWARD_UNIT if unit else FORWARD
        run(choose("position_mix", table, out.device, padded(groups), shape, run))


def scratch(*shape: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device)


def backward(grad: Tensor, inputs: Inputs, gradients: list[Tensor | None], unit: bool) -> None:
    """Write the gradients that have memory (``position_mix_inputs.empty_gradients``)."""
    grad = near(grad)
    if unit:
        # In a separate pass, which forms the new state again: in one kernel, registers would not suffice.
        across = empty(inputs, grad.dtype)
        forward(inputs, across, unit, grad)
        grad = across
    start, state, moved, attend, gate, _, _ = inputs.with_rows()
    d_state, d_moved, d_attend, d_gate, d_expand, d_contract = gradients
    batch, groups, tokens, _ = inputs.sizes()
    matrix = d_matrix = product_IX = silu_NI = None
    if gate is not None:
        product_IX, silu_NI = product(inputs, gate.dtype), F.silu(gate).flatten(0, 1)
        matrix = silu_NI @ product_IX
        if any(x is not None for x in (d_gate, d_expand, d_contract)):
            d_matrix = scratch(*matrix.shape, like=matrix, dtype=matrix.dtype)

    def run(launch: Launch) -> None:
        grid = triton.cdiv(tokens, launch.rows), batch
        sums = None
        if d_attend is not None:
            sums = scratch(grid[0] * batch, *d_attend.shape, like=d_attend, dtype=torch.float32)
        position_mix_backward_kernel[grid](
            grad, start, state, moved, attend, matrix, d_matrix, d_state, d_moved, sums, tokens,
            *strides(grad), *strides(start), *strides(state), *strides(moved), *strides(d_state), *strides(d_moved),
            **_constants(position_mix_backward_kernel, launch, *inputs.model(), False), **launch.options,
        )  # fmt: skip
        if d_attend is not None and sums is not None:
            d_attend.copy_(sums.sum(dim=0))

    shape = (*_shape(inputs), *(x is None for x in gradients))
    most = padded(max(groups, inputs.heads() // 2))
    with torch.cuda.device_of(grad):
        run(choose("position_mix backward", BACKWARD, grad.device, most, shape, run))
    if gate is None or d_matrix is None or product_IX is None or silu_NI is None:
        return
    if d_gate is not None:
        d_silu = (d_matrix @ product_IX.T).view_as(gate)
        d_gate.copy_(torch.ops.aten.silu_backward(d_silu, gate))
    if d_expand is not None or d_contract is not None:
        split((silu_NI.T @ d_matrix).float(), inputs, d_expand, d_contract)


def _constants(
    kernel: Any, launch: Launch, heads: int, groups: int, width: int, rank: int, unit: bool
) -> dict[str, Any]:
    """Return those compile-time sizes that a kernel takes; of pairs, half as many columns are two tiles."""
    columns = min(launch.columns, padded(width))
    sizes = {
        "HEADS": heads,
        "GROUPS": groups,
        "WIDTH": width,
        "RANK": rank,
        "UNIT": unit,
        "LEAST": LEAST,
    }
    sizes |= {"HEAD_ROWS": padded(heads), "GROUP_ROWS": padded(groups), "RANKS": padded(rank)}
    sizes |= {"COLUMNS": max(16, columns // 2) if unit else columns, "TOKENS": launch.rows}
    return {name: size for name, size in sizes.items() if name in kernel.arg_names}


def _shape(inputs: Inputs) -> tuple[Any, ...]:
    return (*inputs.sizes(), *inputs.model(), *(None if x is None else x.dtype for x in inputs))
