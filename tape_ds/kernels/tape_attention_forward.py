"""Attention of a value and a position state, forward: one softmax, two accumulators.

A program owns a block of queries of one head and walks over the keys that they may see. Tiles that every query sees
whole take a loop without masks; the diagonal, the last keys and everything in documents take a masked one. The
softmax is FlashAttention's (Dao 2022, algorithm 1; 2023, section 3.1), in base 2 and fp32.
"""

# mypy: disable-error-code="no-untyped-def"
# Arguments of a kernel have no Python type: Triton compiles it for what it is launched with.

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape_ds.kernels.jit import jit, tl, triton
from tape_ds.kernels.launch import INTERPRETER, Launch, Table, choose, padded
from tape_ds.kernels.strides import empty_rows
from tape_ds.kernels.tape_attention_tiles import (
    key_range,
    load,
    move,
    queries_end,
    rows_present,
    store,
    tile,
    visible,
)

FORWARD: Table = {
    (90, 128): (Launch(128, 64, 8, 3), Launch(128, 64, 8, 2), Launch(128, 32, 8, 3)),
    (90, 64): (Launch(128, 64, 8, 3), Launch(64, 64, 4, 3)),
    (90, 32): (Launch(128, 64, 8, 3), Launch(64, 64, 4, 3)),
    (90, 16): (Launch(128, 64, 8, 3),),
    (80, 128): (Launch(128, 16, 8, 3), Launch(64, 32, 8, 3)),
    (80, 64): (Launch(128, 32, 8, 3),),
    (80, 32): (Launch(128, 64, 8, 2),),
    (80, 16): (Launch(128, 64, 8, 2),),
    **{(INTERPRETER, width): (Launch(32, 32),) for width in (16, 32, 64, 128)},
}


class ForwardCall(NamedTuple):
    """Scalar arguments shared by the kernels of one call."""

    offset: int
    """Place of the first query on the key axis."""
    scale: float
    documents_3BS: Tensor | None
    """Document, its first and its last place, of every key (``tape_attention.document_borders``)."""

    def reach(self, queries: int, keys: int) -> int:
        """Return the end of the keys that a query attends to; later ones are never read."""
        return max(0, min(keys, self.offset + queries))

    def documents(self) -> tuple[Tensor | None, ...]:
        return (
            (None, None, None)
            if self.documents_3BS is None
            else self.documents_3BS.contiguous().unbind()
        )

    def arguments(self, queries: int, keys: int) -> dict[str, Any]:
        reach = self.reach(queries, keys)
        return {
            "queries": queries,
            "keys": keys,
            "reach": reach,
            "offset": self.offset,
            "scale": self.scale,
        }


def whole_blocks(queries: int) -> int:
    """Return the length of a row of statistics: a multiple of every block, for whole and aligned loads."""
    return -(-queries // 128) * 128


@jit
def _walk(
    q, k_base, v_base, e_base, k_s, v_s, e_s, IDS, places_T, documents_T, low, high, reach, scale,
    top_T, total_T, v_TK, e_TK,
    MASKED: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Add the keys ``low`` to ``high`` to the running maximum, sum and the two outputs of a block of queries."""
    k_base = move(k_base, low, k_s)
    v_base = move(v_base, low, v_s)
    e_base = move(e_base, low, e_s)
    scale_2 = scale * 1.4426950408889634  # log2(e): exponentials are powers of 2
    for start in range(low, high, KEYS):
        keys_S = start + tl.arange(0, KEYS)
        exists_S = keys_S < reach
        present_S, documents_S = rows_present(IDS, keys_S, reach, -1)
        k = load(tile(k_base, k_s, KEYS, COLUMNS), exists_S, MASKED, WIDTH, COLUMNS)
        scores_TS = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED:
            allowed_TS = visible(
                places_T[:, None],
                documents_T[:, None],
                keys_S[None, :],
                documents_S[None, :],
                reach,
                IDS,
            )
            scores_TS = tl.where(allowed_TS, scores_TS, float("-inf"))
        new_T = tl.maximum(top_T, tl.max(scores_TS, 1) * scale_2)  # a scale above 0 keeps the order
        p_TS = tl.exp2(scores_TS * scale_2 - new_T[:, None])
        shrink_T = tl.exp2(top_T - new_T)
        total_T = total_T * shrink_T + tl.sum(p_TS, 1)
        top_T = new_T
        v = load(tile(v_base, v_s, KEYS, COLUMNS), present_S, MASKED, WIDTH, COLUMNS)
        e = load(tile(e_base, e_s, KEYS, COLUMNS), present_S, MASKED, WIDTH, COLUMNS)
        p = p_TS.to(v.dtype)
        v_TK = tl.dot(p, v, v_TK * shrink_T[:, None], input_precision="ieee")
        e_TK = tl.dot(p, e, e_TK * shrink_T[:, None], input_precision="ieee")
        k_base += KEYS * k_s
        v_base += KEYS * v_s
        e_base += KEYS * e_s
    return top_T, total_T, v_TK, e_TK


@jit
def forward_kernel(
    Q, K, V, E, OUT, MOVED, LSE, IDS, FIRST, LAST,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, e_b, e_g, e_s, out_b, out_h, out_t, lse_h,
    queries, keys, reach, offset, scale, group,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Output and base-2 log-sum-exp of one block of queries; grid (blocks, heads, batch)."""
    # the last blocks take longest: they start first
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    groups_head = head // group
    row = block * ROWS
    rows_T = row + tl.arange(0, ROWS)
    places_T = offset + rows_T
    if IDS is not None:
        IDS += batch * keys
        FIRST += batch * keys
        LAST += batch * keys
    present_T, documents_T = rows_present(
        IDS, places_T, queries_end(IDS, offset, queries, keys), -2
    )
    low, whole, high = key_range(
        row, places_T, present_T, FIRST, LAST, keys, reach, offset, ROWS, KEYS
    )
    q = load(
        tile(move(Q + batch * q_b + head * q_h, row, q_t), q_t, ROWS, COLUMNS),
        present_T,
        True,
        WIDTH,
        COLUMNS,
    )
    k_base = K + batch * k_b + groups_head * k_g
    v_base = V + batch * v_b + groups_head * v_g
    e_base = E + batch * e_b + groups_head * e_g
    # finite: -inf - -inf would be NaN where nothing has been seen yet
    top_T = tl.full([ROWS], -1e30, tl.float32)
    total_T = tl.zeros([ROWS], tl.float32)
    v_TK = tl.zeros([ROWS, COLUMNS], tl.float32)
    e_TK = tl.zeros([ROWS, COLUMNS], tl.float32)
    if IDS is None:
        top_T, total_T, v_TK, e_TK = _walk(
            q, k_base, v_base, e_base, k_s, v_s, e_s, IDS, places_T, documents_T, low, whole, reach, scale,
            top_T, total_T, v_TK, e_TK, False, WIDTH, COLUMNS, KEYS,
        )  # fmt: skip
    top_T, total_T, v_TK, e_TK = _walk(
        q, k_base, v_base, e_base, k_s, v_s, e_s, IDS, places_T, documents_T, whole, high, reach, scale,
        top_T, total_T, v_TK, e_TK, True, WIDTH, COLUMNS, KEYS,
    )  # fmt: skip

    seen_T = total_T > 0
    inverse_T = tl.where(seen_T, 1.0 / tl.where(seen_T, total_T, 1.0), 0.0)
    inside_T = rows_T < queries
    at = move(batch * out_b + head * out_h, row, out_t)
    store(tile(OUT + at, out_t, ROWS, COLUMNS), v_TK * inverse_T[:, None], inside_T, WIDTH, COLUMNS)
    store(
        tile(MOVED + at, out_t, ROWS, COLUMNS), e_TK * inverse_T[:, None], inside_T, WIDTH, COLUMNS
    )
    lse_T = tl.where(seen_T, top_T + tl.log2(tl.where(seen_T, total_T, 1.0)), float("inf"))
    tl.store(LSE + (batch * tl.num_programs(1) + head) * lse_h + rows_T, lse_T, mask=inside_T)


def forward(
    q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, e_BGSK: Tensor, call: ForwardCall
) -> tuple[Tensor, Tensor, Tensor]:
    """Return both outputs [B, H, T, K], laid out as [B, T, H, K], and the scores' log-sum-exp [B, H, T] in whole
    blocks.

    That is in base 2. A query without keys, or beyond the last one, gets +inf (and 0): ``exp2(score - inf)`` is then 0
    throughout the backward pass.
    """
    batch, heads, queries, width = q_BHTK.shape
    groups, keys = k_BGSK.shape[1:3]
    out_BHTK, attended_BHTK = empty_rows(q_BHTK), empty_rows(q_BHTK)
    lse_BHT = torch.empty(
        (batch, heads, whole_blocks(queries)), device=q_BHTK.device, dtype=torch.float32
    )
    lse_BHT[:, :, queries:].fill_(float("inf"))
    strides = [
        stride for x in (q_BHTK, k_BGSK, v_BGSK, e_BGSK, out_BHTK) for stride in x.stride()[:3]
    ]
    documents, arguments = call.documents(), call.arguments(queries, keys)

    def run(launch: Launch) -> None:
        forward_kernel[(triton.cdiv(queries, launch.rows), heads, batch)](
            q_BHTK, k_BGSK, v_BGSK, e_BGSK, out_BHTK, attended_BHTK, lse_BHT, *documents, *strides,
            lse_BHT.shape[2], group=heads // groups, **arguments,
            WIDTH=width, COLUMNS=padded(width), ROWS=launch.rows, KEYS=launch.columns,
            **launch.options,
        )  # fmt: skip

    if out_BHTK.numel():
        plain = call.documents_3BS is None
        shape = (q_BHTK.shape, groups, keys, plain)
        run(choose("tape_attention forward", FORWARD, q_BHTK.device, padded(width), shape, run))
    return out_BHTK, attended_BHTK, lse_BHT
