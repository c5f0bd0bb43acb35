"""PoSE: long positions from short windows, by skipping (Zhu et al., 2023, arXiv 2309.10400).

A window of ``c`` tokens is cut into chunks. Each chunk keeps its inner order, but the positions jump forward between
chunks, so that over many draws every distance up to the target length is seen at the cost of ``c`` tokens. The content
jumps too: chunks are pieces of one document, in order, with text left out between them by a draw of its own.

The rules are those of the authors' code (``train_preprocess_function_pose`` in ``train_pose.py``) for two chunks,
carried on to any number:

- Lengths: of ``r`` tokens left for ``k`` chunks, the next takes 1 .. ceil(r / k), uniformly; the last takes the rest.
  For two chunks: the first has 1 .. (c + 1) // 2.
- Positions: chunk ``i`` is shifted by ``u_i``; ``u_1 = 0`` and ``u_i`` is uniform in ``u_(i-1) .. T - c``, both ends
  included. So positions start at 0, rise strictly, and reach at most ``T - 1``.
- Content: by the same rule with the document's length ``n`` for ``T``. For two chunks the second ends uniformly in
  ``c .. n``, as in the original.

The original truncates documents at five windows before drawing; that limit is here :attr:`Pose.reach` (in windows), and
off by default. It draws once per example in forked workers and caches the result; here a draw belongs to a sample of
the run and comes from (seed, sample index) alone.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Pose:
    """How samples are drawn from documents. Raises ``ValueError`` for settings that allow no draw."""

    window: int
    """Tokens per training row (``c``)."""
    target: int
    """Length whose positions are to be reached (``T``): positions lie in 0 .. target - 1."""
    chunks: int = 2
    """Pieces per row, 2 or more."""
    reach: int | None = None
    """Content comes from this many windows at a document's start; None: from all of it. The original has 5."""

    def __post_init__(self) -> None:
        if self.chunks < 2:
            raise ValueError(f"chunks = {self.chunks}: PoSE needs 2 or more; pack rows instead of drawing one chunk")
        if self.window < self.chunks:
            raise ValueError(f"window = {self.window}: must hold a token for each of {self.chunks} chunks")
        if self.target < self.window:
            raise ValueError(f"target = {self.target}: must be at least the window, {self.window}")
        if self.reach is not None and self.reach < 1:
            raise ValueError(f"reach = {self.reach}: must be 1 window or more, or None")

    def draw(self, tokens: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """:func:`draw_sample` with these settings."""
        if self.reach is not None:
            tokens = tokens[: self.reach * self.window]
        return draw_sample(tokens, self.window, self.target, self.chunks, rng)


def draw_lengths(count: int, chunks: int, rng: np.random.Generator) -> np.ndarray:
    """Chunk lengths, int64 [chunks], each 1 or more, summing to ``count`` (fewer chunks when ``count`` is smaller)."""
    lengths: list[int] = []
    for left in range(min(chunks, count), 1, -1):
        rest = count - sum(lengths)
        lengths.append(int(rng.integers(1, -(-rest // left), endpoint=True)))
    return np.array([*lengths, count - sum(lengths)], dtype=np.int64)


def draw_shifts(chunks: int, room: int, rng: np.random.Generator) -> np.ndarray:
    """Shifts, int64 [chunks]: the first 0, each next one uniform between the one before and ``room``, included."""
    shifts = [0]
    for _ in range(chunks - 1):
        shifts.append(int(rng.integers(shifts[-1], room, endpoint=True)))
    return np.array(shifts, dtype=np.int64)


def draw_positions(count: int, target: int, chunks: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of one row: int64 [count], strictly rising from 0, at most ``target - 1``.

    Raises:
        ValueError: ``count`` is not within 1 .. ``target``, or ``chunks`` below 1.
    """
    _require(count, target, chunks)
    return _shifted(draw_lengths(count, chunks, rng), target, rng)


def draw_sample(
    tokens: np.ndarray, window: int, target: int, chunks: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """One training row from one document.

    Args:
        tokens: the document, [n], n >= 1.
        window: tokens wanted (``c``). A shorter document gives a row of its n tokens: whole, in order, with skipped
            positions; the collator pads it.
        target: positions lie in 0 .. target - 1.
        chunks: pieces of the row.
        rng: draws lengths, then content, then positions.

    Returns:
        ``(input_ids, position_ids)``, both [min(n, window)], the ids in the document's dtype, positions int64.

    Raises:
        ValueError: the document is empty or the row does not fit the target.
    """
    count = min(len(tokens), window)
    _require(count, target, chunks)
    lengths = draw_lengths(count, chunks, rng)
    taken = _shifted(lengths, len(tokens), rng)
    return tokens[taken], _shifted(lengths, target, rng)


def _shifted(lengths: np.ndarray, span: int, rng: np.random.Generator) -> np.ndarray:
    """0 .. count - 1, each chunk moved forward by its shift, all below ``span``."""
    count = int(lengths.sum())
    return np.arange(count, dtype=np.int64) + np.repeat(draw_shifts(len(lengths), span - count, rng), lengths)


def _require(count: int, target: int, chunks: int) -> None:
    if not 1 <= count <= target:
        raise ValueError(f"a row of {count} tokens does not fit positions 0 .. {target - 1}")
    if chunks < 1:
        raise ValueError(f"chunks = {chunks}: must be 1 or more")
