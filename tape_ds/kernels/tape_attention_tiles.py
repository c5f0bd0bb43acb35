"""Tiles of the attention kernels: how they are addressed and loaded, and which scores a query may see.

A tile is addressed from a 64-bit base that loops move along; offsets inside it stay 32-bit, which is always enough. The
base is one number, where pointers carried through a loop would each take two registers.

Names of compile-time sizes: WIDTH is the head size K, COLUMNS the power of 2 that holds it.
"""

# mypy: disable-error-code="no-untyped-def"
# Arguments of a kernel have no Python type: Triton compiles it for what it is launched with.

from __future__ import annotations

from tape_ds.kernels.jit import jit, tl


@jit
def move(base, row, stride):
    """``base`` moved on by ``row`` rows, in 64 bits."""
    return base + tl.cast(row, tl.int64) * stride


@jit
def tile(base, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers [ROWS, COLUMNS] to the first rows of a matrix whose columns are contiguous."""
    return base + (tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, COLUMNS)[None, :])


@jit
def load(pointers, present, MASKED: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile with zeros for the rows that are not ``present`` (where MASKED) and for columns beyond WIDTH.

    An absent row is never read: padding may hold NaN, and 0 * NaN would bring it into every sum.
    """
    inside = tl.arange(0, COLUMNS)[None, :] < WIDTH
    if MASKED:
        if WIDTH == COLUMNS:
            return tl.load(pointers, mask=present[:, None], other=0.0)
        return tl.load(pointers, mask=present[:, None] & inside, other=0.0)
    if WIDTH == COLUMNS:
        return tl.load(pointers)
    return tl.load(pointers, mask=inside, other=0.0)


@jit
def store(pointers, tile_values, present, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the present rows and the first WIDTH columns of a tile, in the destination's dtype."""
    mask = present[:, None] & (tl.arange(0, COLUMNS)[None, :] < WIDTH)
    tl.store(pointers, tile_values.to(pointers.dtype.element_ty), mask=mask)


@jit
def rows_present(IDS, places, end, ABSENT: tl.constexpr):
    """Return which rows exist, and the document of each (ABSENT without one; 0 for all without documents).

    Args:
        IDS: documents of one row of the batch, below 0 for padding; or None.
        places: of the rows on the key axis; those before its start have no document.
        end: of the rows, at most that of IDS.
        ABSENT: below 0. Queries and keys are given different ones, so that padding never equals padding.
    """
    if IDS is None:
        present, documents = places < end, places * 0
    else:
        # Unsigned, indices before the start are far beyond the end: one comparison.
        inside = places.to(tl.uint32, bitcast=True) < tl.maximum(end, 0).to(tl.uint32)
        documents = tl.load(IDS + places, mask=inside, other=ABSENT)
        present = documents >= 0
        documents = tl.where(present, documents, ABSENT)
    return present, documents


@jit
def queries_end(IDS, offset, queries, keys):
    """Return the end of the queries, or of those with a document."""
    end = offset + queries
    if IDS is not None:
        end = tl.minimum(end, keys)
    return end


@jit
def visible(row_places, row_documents, column_places, column_documents, reach, IDS):
    """Return which key (columns) each query (rows) may see; both are given so that they broadcast against each other.

    Args:
        row_places, row_documents: of the queries.
        column_places, column_documents: of the keys.
        reach: keys from here on are not seen by any query.
        IDS: None where there are no documents.
    """
    if IDS is not None:
        known = row_documents == column_documents  # a key beyond the reach has no document
    else:
        known = column_places < reach
    # Not two conditions joined: a compiler keeps those of a whole tile, for which there are no registers.
    return tl.where(known, column_places, 0x7FFFFFFF) <= row_places


@jit
def key_range(
    row, places_T, present_T, FIRST, LAST, keys, reach, offset,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Keys that a block of queries may see: from ``low`` to ``high``; up to ``whole`` every one of them sees all."""
    low = row * 0
    high = tl.minimum(reach, tl.maximum(offset + row + QUERIES, 0))
    whole = tl.minimum(reach, tl.maximum(offset + row + 1, 0)) // KEYS * KEYS
    if FIRST is not None:
        first_T = tl.load(FIRST + places_T, mask=present_T, other=keys)
        last_T = tl.load(LAST + places_T, mask=present_T, other=-1)
        low = tl.min(first_T, 0) // KEYS * KEYS
        high = tl.minimum(high, tl.max(last_T, 0) + 1)
        whole = low
    return low, whole, high
