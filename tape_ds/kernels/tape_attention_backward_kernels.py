"""The kernels of the backward pass of attention with a value and a state; ``tape_attention_backward`` combines them.

Kernels of dV and dK own a block of keys of one key/value head and walk over the queries of all its query heads: no sum
over heads is left for later and none is atomic.
"""

# mypy: disable-error-code="no-untyped-def"
# Arguments of a kernel have no Python type: Triton compiles it for what it is launched with.

from __future__ import annotations

from tape_ds.kernels.jit import jit, tl
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


@jit
def _rows_of(
    base, row, stride, present_T, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):
    """A block of rows in fp32, zeros where they are not present."""
    return load(
        tile(move(base, row, stride), stride, ROWS, COLUMNS), present_T, True, WIDTH, COLUMNS
    ).to(tl.float32)


@jit
def delta_kernel(
    OUT, MOVED, DOUT, DMOVED, LSE, DELTA,
    out_b, out_h, out_t, moved_b, moved_h, moved_t, dout_b, dout_h, dout_t, dmoved_b, dmoved_h, dmoved_t, lse_h,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``rowsum(dO * O)`` over both outputs, 0 without keys and beyond the last query; grid (blocks, heads, batch)."""
    row = tl.program_id(0) * ROWS
    head, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    line = (batch * tl.num_programs(1) + head) * lse_h + row + tl.arange(0, ROWS)
    present_T = tl.load(LSE + line) < float("inf")
    out = _rows_of(OUT + batch * out_b + head * out_h, row, out_t, present_T, WIDTH, COLUMNS, ROWS)
    dout = _rows_of(
        DOUT + batch * dout_b + head * dout_h, row, dout_t, present_T, WIDTH, COLUMNS, ROWS
    )
    delta_T = tl.sum(out * dout, 1)
    moved = _rows_of(
        MOVED + batch * moved_b + head * moved_h, row, moved_t, present_T, WIDTH, COLUMNS, ROWS
    )
    dmoved = _rows_of(
        DMOVED + batch * dmoved_b + head * dmoved_h, row, dmoved_t, present_T, WIDTH, COLUMNS, ROWS
    )
    delta_T += tl.sum(moved * dmoved, 1)
    tl.store(DELTA + line, delta_T)


@jit
def _query_range(
    key, keys_S, present_S, FIRST, LAST, queries, keys, reach, offset,
    KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Queries that may see a block of keys: from ``low`` to ``high``; from ``whole`` to ``rest`` they see all of it.

    All but ``high`` are multiples of QUERIES, from ``rest`` on there is at most one block, which is not full.
    """
    low, high = tl.maximum(key - offset, 0), queries
    if FIRST is not None:
        first_S = tl.load(FIRST + keys_S, mask=present_S, other=keys)
        last_S = tl.load(LAST + keys_S, mask=present_S, other=-1)
        low = tl.maximum(low, tl.min(first_S, 0) - offset)
        high = tl.minimum(high, tl.max(last_S, 0) + 1 - offset)
        whole = high
    else:
        whole = tl.maximum(key + KEYS - 1 - offset, 0)
        # the last keys need their mask everywhere
        whole = tl.where(key + KEYS > reach, high, whole)
    low = low // QUERIES
    whole = tl.maximum(tl.cdiv(tl.minimum(whole, high), QUERIES), low)
    return low * QUERIES, whole * QUERIES, tl.maximum(high // QUERIES, whole) * QUERIES, high


@jit
def _next(head, start, first, whole, rest, high, QUERIES: tl.constexpr):
    """The block of queries after ``start``, without those from ``whole`` to ``rest``; after the last one the next
    head's first. Counted on, for a division costs as much as a tile's addresses."""
    start = start + QUERIES
    start = tl.where(start == whole, rest, start)
    ended = start >= high
    return head + tl.where(ended, 1, 0), tl.where(ended, first, start)


@jit
def _walk_values(
    k, Q, DOUT, DMOVED, LSE, q_h, q_t, dout_h, dout_t, dmoved_h, dmoved_t, lse_h, IDS, keys_S, documents_S,
    first, whole, rest, high, blocks, end, reach, offset, scale, group, dv_SK, de_SK,
    MASKED: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Add what ``blocks`` blocks of queries of all heads of a group give to dV and dE of a block of keys."""
    scale_2 = scale * 1.4426950408889634  # log2(e)
    head, start = first * 0, first
    # One loop over heads and blocks: as two loops, one in the other, it needs more registers than there are.
    for _ in range(group * blocks):
        rows_T = tl.multiple_of(start, QUERIES) + tl.arange(0, QUERIES)
        places_T = offset + rows_T
        present_T, documents_T = rows_present(IDS, places_T, end, -2)
        q_tile = tile(move(move(Q, head, q_h), start, q_t), q_t, QUERIES, COLUMNS)
        q = load(q_tile, present_T, MASKED, WIDTH, COLUMNS)
        lse_T = tl.load(move(LSE, head, lse_h) + rows_T)
        x_ST = tl.dot(k, tl.trans(q), input_precision="ieee") * scale_2 - lse_T[None, :]
        if MASKED:
            ahead = offset + start  # relative to the block, whose columns are then constants
            allowed_ST = visible(
                tl.arange(0, QUERIES)[None, :], documents_T[None, :], keys_S[:, None] - ahead, documents_S[:, None],
                reach - ahead, IDS,
            )  # fmt: skip
            # of 16-bit weights the compiler would select halves
            x_ST = tl.where(allowed_ST, x_ST, float("-inf"))
        p_ST = tl.exp2(x_ST)
        dout_tile = tile(move(move(DOUT, head, dout_h), start, dout_t), dout_t, QUERIES, COLUMNS)
        do_v = load(dout_tile, present_T, MASKED, WIDTH, COLUMNS)
        dmoved_tile = tile(
            move(move(DMOVED, head, dmoved_h), start, dmoved_t), dmoved_t, QUERIES, COLUMNS
        )
        do_e = load(dmoved_tile, present_T, MASKED, WIDTH, COLUMNS)
        p = p_ST.to(do_v.dtype)
        dv_SK = tl.dot(p, do_v, dv_SK, input_precision="ieee")
        de_SK = tl.dot(p, do_e, de_SK, input_precision="ieee")
        head, start = _next(head, start, first, whole, rest, high, QUERIES)
    return dv_SK, de_SK


@jit
def values_kernel(
    Q, K, DOUT, DMOVED, LSE, DV, DE, IDS, FIRST, LAST,
    q_b, q_h, q_t, k_b, k_g, k_s, dout_b, dout_h, dout_t, dmoved_b, dmoved_h, dmoved_t, dv_b, dv_g, dv_s, lse_h,
    queries, keys, reach, offset, scale, group,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """dV and dE of one block of keys of one key/value head; grid (blocks, groups, batch)."""
    key = tl.program_id(0) * ROWS
    groups_head, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    keys_S = key + tl.arange(0, ROWS)
    if IDS is not None:
        IDS += batch * keys
        FIRST += batch * keys
        LAST += batch * keys
    present_S, documents_S = rows_present(IDS, keys_S, reach, -1)
    end = queries_end(IDS, offset, queries, keys)
    k = load(
        tile(move(K + batch * k_b + groups_head * k_g, key, k_s), k_s, ROWS, COLUMNS),
        present_S,
        True,
        WIDTH,
        COLUMNS,
    )
    low, whole, rest, high = _query_range(
        key, keys_S, present_S, FIRST, LAST, queries, keys, reach, offset, ROWS, QUERIES
    )
    head = groups_head * group
    Q += batch * q_b + head * q_h
    DOUT += batch * dout_b + head * dout_h
    DMOVED += batch * dmoved_b + head * dmoved_h
    LSE += (batch * tl.num_programs(1) * group + head) * lse_h
    dv_SK = tl.zeros([ROWS, COLUMNS], tl.float32)
    de_SK = tl.zeros([ROWS, COLUMNS], tl.float32)
    start = tl.where(low == whole, rest, low)
    blocks = (whole - low) // QUERIES + tl.where(rest < high, 1, 0)
    dv_SK, de_SK = _walk_values(
        k, Q, DOUT, DMOVED, LSE, q_h, q_t, dout_h, dout_t, dmoved_h, dmoved_t, lse_h, IDS, keys_S, documents_S,
        start, whole, rest, high, blocks, end, reach, offset, scale, group, dv_SK, de_SK,
        True, WIDTH, COLUMNS, QUERIES,
    )  # fmt: skip
    if IDS is None:
        dv_SK, de_SK = _walk_values(
            k, Q, DOUT, DMOVED, LSE, q_h, q_t, dout_h, dout_t, dmoved_h, dmoved_t, lse_h, IDS, keys_S, documents_S,
            whole, rest, rest, rest, (rest - whole) // QUERIES, end, reach, offset, scale, group, dv_SK, de_SK,
            False, WIDTH, COLUMNS, QUERIES,
        )  # fmt: skip
    at = move(batch * dv_b + groups_head * dv_g, key, dv_s)
    store(tile(DV + at, dv_s, ROWS, COLUMNS), dv_SK, keys_S < reach, WIDTH, COLUMNS)
    store(tile(DE + at, dv_s, ROWS, COLUMNS), de_SK, keys_S < reach, WIDTH, COLUMNS)


@jit
def _walk_keys(
    k, v, e, Q, DOUT, DMOVED, DQ, LSE, DELTA, q_h, q_t, dout_h, dout_t, dmoved_h, dmoved_t, dq_h, dq_t, lse_h,
    IDS, keys_S, documents_S, first, whole, rest, high, blocks, end, reach, offset, scale, group, dk_SK,
    MASKED: tl.constexpr, ATOMIC: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Add what ``blocks`` blocks of queries of a group's heads give to dK of a block of keys, and (ATOMIC) to dQ."""
    scale_2 = scale * 1.4426950408889634  # log2(e)
    head, start = first * 0, first
    for _ in range(group * blocks):
        rows_T = tl.multiple_of(start, QUERIES) + tl.arange(0, QUERIES)
        places_T = offset + rows_T
        present_T, documents_T = rows_present(IDS, places_T, end, -2)
        q_tile = tile(move(move(Q, head, q_h), start, q_t), q_t, QUERIES, COLUMNS)
        q = load(q_tile, present_T, MASKED, WIDTH, COLUMNS)
        lse_T = tl.load(move(LSE, head, lse_h) + rows_T)
        x_ST = tl.dot(k, tl.trans(q), input_precision="ieee") * scale_2 - lse_T[None, :]
        if MASKED:
            allowed_ST = visible(
                places_T[None, :],
                documents_T[None, :],
                keys_S[:, None],
                documents_S[:, None],
                reach,
                IDS,
            )
            # of 16-bit weights the compiler would select halves
            x_ST = tl.where(allowed_ST, x_ST, float("-inf"))
        p_ST = tl.exp2(x_ST)
        dout_tile = tile(move(move(DOUT, head, dout_h), start, dout_t), dout_t, QUERIES, COLUMNS)
        do_v = load(dout_tile, present_T, MASKED, WIDTH, COLUMNS)
        dp_ST = tl.dot(v, tl.trans(do_v), input_precision="ieee")
        dmoved_tile = tile(
            move(move(DMOVED, head, dmoved_h), start, dmoved_t), dmoved_t, QUERIES, COLUMNS
        )
        do_e = load(dmoved_tile, present_T, MASKED, WIDTH, COLUMNS)
        dp_ST = tl.dot(e, tl.trans(do_e), dp_ST, input_precision="ieee")
        delta_T = tl.load(move(DELTA, head, lse_h) + rows_T)
        ds_ST = p_ST * (dp_ST - delta_T[None, :])
        ds = ds_ST.to(q.dtype)
        dk_SK = tl.dot(ds, q, dk_SK, input_precision="ieee")
        if ATOMIC:
            dq_TK = tl.dot(tl.trans(ds), k, input_precision="ieee") * scale
            dq_tile = tile(move(move(DQ, head, dq_h), start, dq_t), dq_t, QUERIES, COLUMNS)
            tl.atomic_add(
                dq_tile, dq_TK, mask=tl.arange(0, COLUMNS)[None, :] < WIDTH, sem="relaxed"
            )
        head, start = _next(head, start, first, whole, rest, high, QUERIES)
    return dk_SK


@jit
def keys_kernel(
    Q, K, V, E, DOUT, DMOVED, LSE, DELTA, DK, DQ, IDS, FIRST, LAST,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, e_b, e_g, e_s,
    dout_b, dout_h, dout_t, dmoved_b, dmoved_h, dmoved_t, dk_b, dk_g, dk_s, dq_b, dq_h, dq_t, lse_h,
    queries, keys, reach, offset, scale, group,
    ATOMIC: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """dK of one block of keys of one key/value head, and its part of dQ; grid (blocks, groups, batch)."""
    key = tl.program_id(0) * ROWS
    groups_head, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    keys_S = key + tl.arange(0, ROWS)
    if IDS is not None:
        IDS += batch * keys
        FIRST += batch * keys
        LAST += batch * keys
    present_S, documents_S = rows_present(IDS, keys_S, reach, -1)
    end = queries_end(IDS, offset, queries, keys)
    k = load(
        tile(move(K + batch * k_b + groups_head * k_g, key, k_s), k_s, ROWS, COLUMNS),
        present_S,
        True,
        WIDTH,
        COLUMNS,
    )
    v = load(
        tile(move(V + batch * v_b + groups_head * v_g, key, v_s), v_s, ROWS, COLUMNS),
        present_S,
        True,
        WIDTH,
        COLUMNS,
    )
    e = load(
        tile(move(E + batch * e_b + groups_head * e_g, key, e_s), e_s, ROWS, COLUMNS),
        present_S,
        True,
        WIDTH,
        COLUMNS,
    )
    low, whole, rest, high = _query_range(
        key, keys_S, present_S, FIRST, LAST, queries, keys, reach, offset, ROWS, QUERIES
    )
    head = groups_head * group
    Q += batch * q_b + head * q_h
    DOUT += batch * dout_b + head * dout_h
    DMOVED += batch * dmoved_b + head * dmoved_h
    DQ += batch * dq_b + head * dq_h
    line = (batch * tl.num_programs(1) * group + head) * lse_h
    LSE += line
    DELTA += line
    dk_SK = tl.zeros([ROWS, COLUMNS], tl.float32)
    start = tl.where(low == whole, rest, low)
    blocks = (whole - low) // QUERIES + tl.where(rest < high, 1, 0)
    dk_SK = _walk_keys(
        k, v, e, Q, DOUT, DMOVED, DQ, LSE, DELTA, q_h, q_t, dout_h, dout_t, dmoved_h, dmoved_t, dq_h, dq_t, lse_h,
        IDS, keys_S, documents_S, start, whole, rest, high, blocks, end, reach, offset, scale, group, dk_SK,
        True, ATOMIC, WIDTH, COLUMNS, QUERIES,
    )  # fmt: skip
    if IDS is None:
        dk_SK = _walk_keys(
            k, v, e, Q, DOUT, DMOVED, DQ, LSE, DELTA, q_h, q_t, dout_h, dout_t, dmoved_h, dmoved_t, dq_h, dq_t, lse_h,
            IDS, keys_S, documents_S, whole, rest, rest, rest, (rest - whole) // QUERIES,
            end, reach, offset, scale, group, dk_SK,
            False, ATOMIC, WIDTH, COLUMNS, QUERIES,
        )  # fmt: skip
    dk_tile = tile(move(DK + batch * dk_b + groups_head * dk_g, key, dk_s), dk_s, ROWS, COLUMNS)
    store(dk_tile, dk_SK * scale, keys_S < reach, WIDTH, COLUMNS)


@jit
def _walk_queries(
    q, do_v, do_e, lse_T, delta_T, k_base, v_base, e_base, k_s, v_s, e_s,
    IDS, places_T, documents_T, low, high, reach, scale, dq_TK,
    MASKED: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Add what the keys ``low`` to ``high`` give to dQ of a block of queries."""
    k_base = move(k_base, low, k_s)
    v_base = move(v_base, low, v_s)
    e_base = move(e_base, low, e_s)
    scale_2 = scale * 1.4426950408889634  # log2(e)
    for start in range(low, high, KEYS):
        keys_S = start + tl.arange(0, KEYS)
        present_S, documents_S = rows_present(IDS, keys_S, reach, -1)
        k = load(tile(k_base, k_s, KEYS, COLUMNS), present_S, MASKED, WIDTH, COLUMNS)
        x_TS = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_2 - lse_T[:, None]
        if MASKED:
            allowed_TS = visible(
                places_T[:, None],
                documents_T[:, None],
                keys_S[None, :],
                documents_S[None, :],
                reach,
                IDS,
            )
            x_TS = tl.where(allowed_TS, x_TS, float("-inf"))
        p_TS = tl.exp2(x_TS)
        v = load(tile(v_base, v_s, KEYS, COLUMNS), present_S, MASKED, WIDTH, COLUMNS)
        dp_TS = tl.dot(do_v, tl.trans(v), input_precision="ieee")
        e = load(tile(e_base, e_s, KEYS, COLUMNS), present_S, MASKED, WIDTH, COLUMNS)
        dp_TS = tl.dot(do_e, tl.trans(e), dp_TS, input_precision="ieee")
        ds_TS = p_TS * (dp_TS - delta_T[:, None])
        dq_TK = tl.dot(ds_TS.to(k.dtype), k, dq_TK, input_precision="ieee")
        k_base += KEYS * k_s
        v_base += KEYS * v_s
        e_base += KEYS * e_s
    return dq_TK


@jit
def queries_kernel(
    Q, K, V, E, DOUT, DMOVED, LSE, DELTA, DQ, IDS, FIRST, LAST,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, e_b, e_g, e_s,
    dout_b, dout_h, dout_t, dmoved_b, dmoved_h, dmoved_t, dq_b, dq_h, dq_t, lse_h,
    queries, keys, reach, offset, scale, group,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """dQ of one block of queries without atomics; grid (blocks, heads, batch)."""
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
    line = (batch * tl.num_programs(1) + head) * lse_h
    q = load(
        tile(move(Q + batch * q_b + head * q_h, row, q_t), q_t, ROWS, COLUMNS),
        present_T,
        True,
        WIDTH,
        COLUMNS,
    )
    dout_tile = tile(
        move(DOUT + batch * dout_b + head * dout_h, row, dout_t), dout_t, ROWS, COLUMNS
    )
    do_v = load(dout_tile, present_T, True, WIDTH, COLUMNS)
    dmoved_tile = tile(
        move(DMOVED + batch * dmoved_b + head * dmoved_h, row, dmoved_t), dmoved_t, ROWS, COLUMNS
    )
    do_e = load(dmoved_tile, present_T, True, WIDTH, COLUMNS)
    lse_T = tl.load(LSE + line + rows_T)
    delta_T = tl.load(DELTA + line + rows_T)
    k_base = K + batch * k_b + groups_head * k_g
    v_base = V + batch * v_b + groups_head * v_g
    e_base = E + batch * e_b + groups_head * e_g
    dq_TK = tl.zeros([ROWS, COLUMNS], tl.float32)
    if IDS is None:
        dq_TK = _walk_queries(
            q, do_v, do_e, lse_T, delta_T, k_base, v_base, e_base, k_s, v_s, e_s,
            IDS, places_T, documents_T, low, whole, reach, scale, dq_TK, False, WIDTH, COLUMNS, KEYS,
        )  # fmt: skip
    dq_TK = _walk_queries(
        q, do_v, do_e, lse_T, delta_T, k_base, v_base, e_base, k_s, v_s, e_s,
        IDS, places_T, documents_T, whole, high, reach, scale, dq_TK, True, WIDTH, COLUMNS, KEYS,
    )  # fmt: skip
    dq_tile = tile(move(DQ + batch * dq_b + head * dq_h, row, dq_t), dq_t, ROWS, COLUMNS)
    store(dq_tile, dq_TK * scale, rows_T < queries, WIDTH, COLUMNS)
