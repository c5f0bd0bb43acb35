"""Attention of a value and a position state, backward, in the split form: one delta, one dS, no spilled registers.

Value and state share the weights, so ``delta = rowsum(dO * O)`` runs over both outputs and
``dS = P * (dO_v V^T + dO_e E^T - delta)`` is formed once (FlashAttention-2, algorithm 2, with V = 2 K). On Hopper the
accumulators dV, dE, dK and dQ do not fit the registers together; hence one kernel for {dV, dE} and one for {dK, dQ}.
The latter adds dQ atomically into fp32, so the order of its sums, and their last bits, differ from run to run;
``deterministic`` computes dQ in a separate kernel.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tape_ds.kernels.jit import triton
from tape_ds.kernels.launch import INTERPRETER, Launch, Table, choose, padded
from tape_ds.kernels.strides import empty_rows
from tape_ds.kernels.tape_attention_backward_kernels import (
    delta_kernel,
    keys_kernel,
    queries_kernel,
    values_kernel,
)
from tape_ds.kernels.tape_attention_forward import ForwardCall, whole_blocks

_INTERPRETED: Table = {(INTERPRETER, width): (Launch(32, 32),) for width in (16, 32, 64, 128)}
DELTA: Table = {
    **{
        (capability, width): (Launch(32, 0, 4, 2),)
        for capability in (80, 90)
        for width in (16, 32, 64, 128)
    },
    **_INTERPRETED,
}
VALUES: Table = {
    (90, 128): (Launch(128, 64, 8, 2), Launch(64, 64, 8, 2)),
    (90, 64): (Launch(128, 64, 8, 2),),
    (90, 32): (Launch(128, 64, 8, 2),),
    (90, 16): (Launch(64, 64, 4, 2),),
    (80, 128): (Launch(64, 64, 8, 2), Launch(64, 32, 8, 2)),
    (80, 64): (Launch(128, 32, 8, 2),),
    (80, 32): (Launch(128, 32, 8, 2),),
    (80, 16): (Launch(128, 32, 8, 2),),
    **_INTERPRETED,
}
# Documents need registers for ids and for loads that wait
VALUES_DOCUMENTS: Table = {**VALUES, (90, 128): (Launch(128, 32, 8, 2),)}
KEYS_AND_QUERIES: Table = {
    (90, 128): (Launch(128, 64, 8, 2),),
    (90, 64): (Launch(128, 64, 8, 2),),
    (90, 32): (Launch(128, 64, 8, 2),),
    (90, 16): (Launch(128, 64, 8, 2),),
    (80, 128): (Launch(64, 32, 8, 2),),
    (80, 64): (Launch(128, 32, 8, 2),),
    (80, 32): (Launch(128, 32, 8, 2),),
    (80, 16): (Launch(128, 32, 8, 2),),
    **_INTERPRETED,
}
_TRITON = (3, 7) if triton is None else tuple(map(int, triton.__version__.split(".")[:2]))
_ROWS = 64 if _TRITON < (3, 7) else 128
# Triton 3.6 spills in the loop with 128 rows, Triton 3.9 with 64
KEYS_AND_QUERIES_DOCUMENTS: Table = {**KEYS_AND_QUERIES, (90, 128): (Launch(_ROWS, 64, 8, 2),)}
QUERIES: Table = {
    (90, 128): (Launch(64, 64, 8, 2), Launch(128, 64, 8, 2)),
    (90, 64): (Launch(128, 64, 8, 2),),
    (90, 32): (Launch(128, 64, 8, 2),),
    (90, 16): (Launch(128, 64, 8, 2),),
    (80, 128): (Launch(64, 64, 8, 2),),
    (80, 64): (Launch(128, 32, 8, 2),),
    (80, 32): (Launch(128, 32, 8, 2),),
    (80, 16): (Launch(128, 32, 8, 2),),
    **_INTERPRETED,
}


class Saved(NamedTuple):
    """The tensors that the forward saves, its inputs first."""

    q_BHTK: Tensor
    k_BGSK: Tensor
    v_BGSK: Tensor
    e_BGSK: Tensor
    out_BHTK: Tensor
    attended_BHTK: Tensor
    lse_BHT: Tensor


def backward(
    dout_BHTK: Tensor, dattended_BHTK: Tensor, saved: Saved, call: ForwardCall, deterministic: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dK, dV and dE, each laid out as [B, tokens, heads, K]."""
    q_BHTK, k_BGSK, v_BGSK, e_BGSK, out_BHTK, attended_BHTK, lse_BHT = saved
    batch, heads, queries, width = q_BHTK.shape
    groups, keys = k_BGSK.shape[1:3]
    columns, reach = padded(width), call.reach(queries, keys)
    dq_BHTK, dk_BGSK, dv_BGSK, de_BGSK = (empty_rows(x) for x in (q_BHTK, k_BGSK, v_BGSK, e_BGSK))
    for gradient in (dk_BGSK, dv_BGSK, de_BGSK):
        gradient[:, :, reach if dq_BHTK.numel() else 0 :].zero_()
    if not dq_BHTK.numel():
        return dq_BHTK, dk_BGSK, dv_BGSK, de_BGSK

    sums_BHTK = dq_BHTK
    if not deterministic:  # in fp32, with room for whole blocks: what is added needs no mask
        room = (batch, whole_blocks(queries), heads, width)
        sums_BHTK = torch.empty(room, device=q_BHTK.device, dtype=torch.float32).transpose(1, 2)
    delta_BHT = torch.empty_like(lse_BHT)
    plain = call.documents_3BS is None
    shape = (q_BHTK.shape, groups, keys, plain)
    documents, arguments = call.documents(), call.arguments(queries, keys)
    arguments |= {"group": heads // groups, "WIDTH": width, "COLUMNS": columns}

    def start(name: str, table: Table, run: Callable[[Launch], None]) -> None:
        run(choose(f"tape_attention {name}", table, q_BHTK.device, columns, shape, run))

    def strides(*tensors: Tensor) -> list[int]:
        return [stride for tensor in tensors for stride in tensor.stride()[:3]]

    def delta(launch: Launch) -> None:
        delta_kernel[(triton.cdiv(lse_BHT.shape[2], launch.rows), heads, batch)](
            out_BHTK, attended_BHTK, dout_BHTK, dattended_BHTK, lse_BHT, delta_BHT,
            *strides(out_BHTK, attended_BHTK, dout_BHTK, dattended_BHTK), lse_BHT.shape[2],
            WIDTH=width, COLUMNS=columns, ROWS=launch.rows, **launch.options,
        )  # fmt: skip

    def values(launch: Launch) -> None:
        values_kernel[(triton.cdiv(reach, launch.rows), groups, batch)](
            q_BHTK, k_BGSK, dout_BHTK, dattended_BHTK, lse_BHT, dv_BGSK, de_BGSK, *documents,
            *strides(q_BHTK, k_BGSK, dout_BHTK, dattended_BHTK, dv_BGSK), lse_BHT.shape[2],
            **arguments, ROWS=launch.rows, QUERIES=launch.columns, **launch.options,
        )  # fmt: skip

    def keys_and_queries(launch: Launch) -> None:
        keys_kernel[(triton.cdiv(reach, launch.rows), groups, batch)](
            q_BHTK, k_BGSK, v_BGSK, e_BGSK, dout_BHTK, dattended_BHTK, lse_BHT, delta_BHT, dk_BGSK, sums_BHTK,
            *documents, *strides(q_BHTK, k_BGSK, v_BGSK, e_BGSK, dout_BHTK, dattended_BHTK, dk_BGSK, sums_BHTK),
            lse_BHT.shape[2], **arguments, ATOMIC=not deterministic, ROWS=launch.rows, QUERIES=launch.columns,
            **launch.options,
        )  # fmt: skip

    def only_queries(launch: Launch) -> None:
        queries_kernel[(triton.cdiv(queries, launch.rows), heads, batch)](
            q_BHTK, k_BGSK, v_BGSK, e_BGSK, dout_BHTK, dattended_BHTK, lse_BHT, delta_BHT, dq_BHTK, *documents,
            *strides(q_BHTK, k_BGSK, v_BGSK, e_BGSK, dout_BHTK, dattended_BHTK, dq_BHTK), lse_BHT.shape[2],
            **arguments, ROWS=launch.rows, KEYS=launch.columns, **launch.options,
        )  # fmt: skip

    start("delta", DELTA, delta)
    keys_table = KEYS_AND_QUERIES if plain else KEYS_AND_QUERIES_DOCUMENTS
    start("dV", VALUES if plain else VALUES_DOCUMENTS, values)
    if deterministic:
        start("dK", keys_table, keys_and_queries)
        start("dQ", QUERIES, only_queries)
    else:
        launch = choose(
            "tape_attention dK dQ", keys_table, q_BHTK.device, columns, shape, keys_and_queries
        )
        sums_BHTK.zero_()  # after any trial launch: dQ is added to
        keys_and_queries(launch)
        dq_BHTK.copy_(sums_BHTK[:, :, :queries])
    return dq_BHTK, dk_BGSK, dv_BGSK, de_BGSK
