"""Attention of a few new tokens over a long cache: the keys are split over programs, then the parts are put together.

One token of one head would leave most of a GPU idle, and reading the cache is all the work there is. So the query rows
of all heads that share a key/value head form one tile, which reads that head's cache once, and every part of the cache
has a separate program (flash-decoding; Dao, Haziza, Massa, Sizov 2023). Each leaves its output unnormalised, in fp32,
with its maximum and its sum; a second kernel joins them.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size.
"""

# mypy: disable-error-code="no-untyped-def"
# Arguments of a kernel have no Python type: Triton compiles it for what it is launched with.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tape_ds.kernels import jit as gate
from tape_ds.kernels.jit import INTERPRETED, INTERPRETER, jit, tl, triton
from tape_ds.kernels.launch import Launch, Table, capability, padded
from tape_ds.kernels.operators import operator
from tape_ds.kernels.strides import empty_rows
from tape_ds.kernels.tape_attention import why_not_shapes
from tape_ds.kernels.tape_attention_tiles import (
    load,
    move,
    queries_end,
    rows_present,
    store,
    tile,
    visible,
)

LONGEST = 16  # most queries per sequence; with more, programs over queries keep a GPU busy
MOST_SPLITS = 128
LEAST_KEYS = 256  # a part shorter than this costs more to join than to compute
# At most this number of rows; a power of 2 that fits a group's is enough: up to 64 rows read a cache once
SPLIT: Table = {
    **{
        (capability, width): (Launch(64, 64, 8, 2),)
        for capability in (80, 90)
        for width in (16, 32, 64, 128)
    },
    (90, 128): (Launch(64, 64, 8, 3),),  # with 2 stages 16 rows spill under Triton 3.9
    **{(INTERPRETER, width): (Launch(32, 16),) for width in (16, 32, 64, 128)},
}
JOIN = Launch(16, 0, 4, 2)


@jit
def split_kernel(
    Q, K, V, E, PART, TOP, TOTAL, IDS,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, e_b, e_g, e_s, ids_b,
    queries, keys, reach, offset, scale, group, per_split,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One part of the keys for a block of a group's query rows; grid (splits, groups x blocks of rows, batch)."""
    split, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    lines = group * queries  # line r of a group: query r % T of its head r // T
    blocks = tl.cdiv(lines, ROWS)
    groups_head, row = tl.program_id(1) // blocks, tl.program_id(1) % blocks * ROWS
    rows_T = row + tl.arange(0, ROWS)
    places_T = offset + rows_T % queries
    if IDS is not None:
        IDS += batch * ids_b
    end = queries_end(IDS, offset, queries, keys)
    present_T, documents_T = rows_present(IDS, tl.where(rows_T < lines, places_T, end), end, -2)
    heads_T = (groups_head * group + rows_T // queries).to(tl.int64)
    lines_T = Q + batch * q_b + heads_T * q_h + (rows_T % queries) * q_t
    q = load(lines_T[:, None] + tl.arange(0, COLUMNS)[None, :], present_T, True, WIDTH, COLUMNS)

    low = split * per_split
    high = tl.minimum(low + per_split, reach)
    k_base = move(K + batch * k_b + groups_head.to(tl.int64) * k_g, low, k_s)
    v_base = move(V + batch * v_b + groups_head.to(tl.int64) * v_g, low, v_s)
    if E is not None:
        e_base = move(E + batch * e_b + groups_head.to(tl.int64) * e_g, low, e_s)
    scale_2 = scale * 1.4426950408889634  # log2(e): exponentials are powers of 2
    # finite: -inf - -inf would be NaN where nothing has been seen yet
    top_T = tl.full([ROWS], -1e30, tl.float32)
    total_T = tl.zeros([ROWS], tl.float32)
    v_TK = tl.zeros([ROWS, COLUMNS], tl.float32)
    e_TK = v_TK
    for start in range(low, high, KEYS):
        keys_S = start + tl.arange(0, KEYS)
        present_S, documents_S = rows_present(IDS, keys_S, high, -1)
        k = load(tile(k_base, k_s, KEYS, COLUMNS), keys_S < high, True, WIDTH, COLUMNS)
        scores_TS = tl.dot(q, tl.trans(k), input_precision="ieee")
        allowed_TS = visible(
            places_T[:, None],
            documents_T[:, None],
            keys_S[None, :],
            documents_S[None, :],
            high,
            IDS,
        )
        scores_TS = tl.where(
            allowed_TS & present_T[:, None] & present_S[None, :], scores_TS, float("-inf")
        )
        new_T = tl.maximum(top_T, tl.max(scores_TS, 1) * scale_2)
        p_TS = tl.exp2(scores_TS * scale_2 - new_T[:, None])
        shrink_T = tl.exp2(top_T - new_T)
        total_T = total_T * shrink_T + tl.sum(p_TS, 1)
        top_T = new_T
        v = load(tile(v_base, v_s, KEYS, COLUMNS), present_S, True, WIDTH, COLUMNS)
        p = p_TS.to(v.dtype)
        v_TK = tl.dot(p, v, v_TK * shrink_T[:, None], input_precision="ieee")
        if E is not None:
            e = load(tile(e_base, e_s, KEYS, COLUMNS), present_S, True, WIDTH, COLUMNS)
            e_TK = tl.dot(p, e, e_TK * shrink_T[:, None], input_precision="ieee")
            e_base += KEYS * e_s
        k_base += KEYS * k_s
        v_base += KEYS * v_s

    everything = tl.num_programs(2).to(tl.int64) * (tl.num_programs(1) // blocks) * lines
    line = split * everything + (batch * (tl.num_programs(1) // blocks) + groups_head) * lines + row
    inside_T = rows_T < lines
    width = WIDTH if E is None else WIDTH + WIDTH
    part_tile = tile(move(PART, line, width), width, ROWS, COLUMNS)
    store(part_tile, v_TK, inside_T, WIDTH, COLUMNS)
    if E is not None:
        store(part_tile + WIDTH, e_TK, inside_T, WIDTH, COLUMNS)
    tl.store(TOP + line + tl.arange(0, ROWS), top_T, mask=inside_T)
    tl.store(TOTAL + line + tl.arange(0, ROWS), total_T, mask=inside_T)


@jit
def join_kernel(
    PART, TOP, TOTAL, OUT, MOVED, out_b, out_h, out_t, lines, queries, heads, splits,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The parts of a block of lines (batch x head x query) as one; grid (blocks, 1, or 2 with a position state)."""
    row = tl.program_id(0) * ROWS
    half = tl.program_id(1) * WIDTH
    lines_T = row + tl.arange(0, ROWS)
    inside_T = lines_T < lines
    width = WIDTH if MOVED is None else WIDTH + WIDTH
    if MOVED is not None:
        OUT = tl.where(half > 0, MOVED, OUT)
    top_T = tl.full([ROWS], -1e30, tl.float32)
    total_T = tl.zeros([ROWS], tl.float32)
    out_TK = tl.zeros([ROWS, COLUMNS], tl.float32)
    for split in range(splits):
        line = tl.cast(split, tl.int64) * lines + row
        part_T = tl.load(TOP + line + tl.arange(0, ROWS), mask=inside_T, other=-1e30)
        sum_T = tl.load(TOTAL + line + tl.arange(0, ROWS), mask=inside_T, other=0.0)
        part_TK = load(
            tile(move(PART, line, width), width, ROWS, COLUMNS) + half,
            inside_T,
            True,
            WIDTH,
            COLUMNS,
        )
        new_T = tl.maximum(top_T, part_T)
        shrink_T, share_T = tl.exp2(top_T - new_T), tl.exp2(part_T - new_T)
        total_T = total_T * shrink_T + sum_T * share_T
        out_TK = out_TK * shrink_T[:, None] + part_TK * share_T[:, None]
        top_T = new_T
    seen_T = total_T > 0
    inverse_T = tl.where(seen_T, 1.0 / tl.where(seen_T, total_T, 1.0), 0.0)
    batch_T, head_T = (lines_T // (queries * heads)).to(tl.int64), lines_T // queries % heads
    out_T = OUT + batch_T * out_b + head_T.to(tl.int64) * out_h + (lines_T % queries) * out_t
    store(
        out_T[:, None] + tl.arange(0, COLUMNS)[None, :],
        out_TK * inverse_T[:, None],
        inside_T,
        WIDTH,
        COLUMNS,
    )


def split_count(keys: int, programs: int, processors: int) -> int:
    """Return how many parts the keys are cut into: as many as run at once, two programs on every processor; none too
    short.

    Rounded down: one program more than there is room for makes all of them wait for a second wave.

    Args:
        keys: that can be seen.
        programs: that one part takes.
        processors: of the device.
    """
    return max(1, min(2 * processors // max(programs, 1), keys // LEAST_KEYS, MOST_SPLITS))


def why_not(
    q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, e_BGSK: Tensor | None = None
) -> str | None:
    """Return why :func:`decode_attention` cannot take this call, or None."""
    values = (v_BGSK,) if e_BGSK is None else (v_BGSK, e_BGSK)
    if problem := gate.why_not(q_BHTK) or why_not_shapes(q_BHTK, k_BGSK, *values):
        return problem
    if q_BHTK.shape[2] > LONGEST:
        return f"{q_BHTK.shape[2]} queries per sequence are more than {LONGEST}"
    return None


@operator("tape_ds::decode_attention", devices=("cpu", "cuda"))
def _decode(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    e_BGSK: Tensor | None,
    document_ids_BS: Tensor | None,
    offset: int,
    scale: float,
    splits: int,
) -> list[Tensor]:
    if problem := why_not(q_BHTK, k_BGSK, v_BGSK, e_BGSK):
        raise ValueError(f"decode_attention: {problem}")
    batch, heads, queries, width = q_BHTK.shape
    groups, keys = k_BGSK.shape[1:3]
    device, lines, reach = (
        q_BHTK.device,
        batch * heads * queries,
        max(0, min(keys, offset + queries)),
    )
    outputs = [empty_rows(q_BHTK) for _ in range(1 if e_BGSK is None else 2)]
    if not outputs[0].numel():
        return outputs
    (launch,) = SPLIT[capability(device), padded(width)]
    block = min(padded(heads // groups * queries), launch.rows)
    row_blocks = triton.cdiv(heads // groups * queries, block)
    processors = (
        1 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count
    )
    splits = splits or split_count(reach, batch * groups * row_blocks, processors)
    per_split = triton.cdiv(triton.cdiv(reach, launch.columns), splits) * launch.columns
    part = torch.empty((splits, lines, len(outputs) * width), device=device, dtype=torch.float32)
    top, total = (
        torch.empty((splits, lines), device=device, dtype=torch.float32) for _ in range(2)
    )
    with torch.cuda.device_of(q_BHTK):
        split_kernel[(splits, groups * row_blocks, batch)](
            q_BHTK, k_BGSK, v_BGSK, e_BGSK, part, top, total, document_ids_BS,
            *q_BHTK.stride()[:3], *k_BGSK.stride()[:3], *v_BGSK.stride()[:3],
            *((0, 0, 0) if e_BGSK is None else e_BGSK.stride()[:3]),
            0 if document_ids_BS is None else document_ids_BS.stride(0),
            queries, keys, reach, offset, scale, heads // groups, per_split,
            WIDTH=width, COLUMNS=padded(width), ROWS=block, KEYS=launch.columns, **launch.options,
        )  # fmt: skip
        join_kernel[(triton.cdiv(lines, JOIN.rows), len(outputs))](
            part, top, total, outputs[0], None if e_BGSK is None else outputs[1], *outputs[0].stride()[:3],
            lines, queries, heads, splits, WIDTH=width, COLUMNS=padded(width), ROWS=JOIN.rows, **JOIN.options,
        )  # fmt: skip
    return outputs


@_decode.register_fake
def _(
    q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, e_BGSK: Tensor | None, *_: Any
) -> list[Tensor]:
    return [empty_rows(q_BHTK) for _ in range(1 if e_BGSK is None else 2)]


def decode_attention(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    e_BGSK: Tensor | None = None,
    *,
    offset: int | None = None,
    document_ids: Tensor | None = None,
    scale: float | None = None,
    splits: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Causal attention of at most 16 queries over a cache; forward only.

    Args:
        q_BHTK: queries. Any strides whose last is 1; so for k, v and e, which may be slices of a larger buffer.
        k_BGSK: keys; query head h reads key/value head h // (H / G).
        v_BGSK: values.
        e_BGSK: position states, averaged with the same weights; or None.
        offset: position of the first query on the key axis; S - T if None. Keys after the last query are never read.
        document_ids: integers [B, S], below 0 is padding. Query t is at offset + t and sees its document only.
        scale: factor on the scores, above 0; K^-1/2 if None.
        splits: parts that the keys are cut into; chosen by :func:`split_count` if None.

    Returns:
        A v, and A e or None: [B, H, T, K] in the inputs' dtype, laid out as [B, T, H, K]; 0 for a query without a key.
    """
    if problem := why_not(q_BHTK, k_BGSK, v_BGSK, e_BGSK):
        raise ValueError(f"decode_attention: {problem}")
    tensors = (q_BHTK, k_BGSK, v_BGSK, e_BGSK)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        raise ValueError(
            "decode_attention: it has no gradient; call it under torch.no_grad(), or use tape_attention"
        )
    scale = q_BHTK.shape[-1] ** -0.5 if scale is None else scale
    offset = k_BGSK.shape[2] - q_BHTK.shape[2] if offset is None else offset
    if not scale > 0:
        raise ValueError(f"decode_attention: scale {scale} is not above 0")
    if splits is not None and splits < 1:
        raise ValueError(f"decode_attention: {splits} splits are not at least 1")
    if document_ids is not None:
        shape = (q_BHTK.shape[0], k_BGSK.shape[2])
        if document_ids.shape != shape:
            raise ValueError(
                f"decode_attention: document_ids {list(document_ids.shape)} are not {list(shape)}"
            )
        if document_ids.dtype not in (torch.int32, torch.int64):  # nothing is below 0 in uint8
            document_ids = document_ids.int()
        document_ids = document_ids if document_ids.stride(-1) == 1 else document_ids.contiguous()
    out_BHTK, *moved = _decode(
        q_BHTK, k_BGSK, v_BGSK, e_BGSK, document_ids, offset, scale, splits or 0
    )
    return out_BHTK, moved[0] if moved else None
