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
- Content: chunk ``i`` is moved forward by ``v_i`` in the document; ``v_1 = 0`` and ``v_i`` is uniform in
  ``v_(i-1) .. n - c``, ``n`` the document's length. For two chunks the second ends uniformly in ``c .. n``, as in the
  original.

The paper (section 3.2) compares this ``v`` with two others and finds little difference; :attr:`Pose.content` offers all
three. The original truncates documents at five windows before drawing; that limit is here :attr:`Pose.reach` (in
windows), and off by default. It draws once per example in forked workers and caches the result; here a draw belongs to
a sample of the run and comes from (seed, sample index) alone.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Content = Literal["skipped", "contiguous", "aligned"]
Skips = Literal["uniform", "sorted"]


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
    content: Content = "skipped"
    """The text of later chunks: ``skipped``, text left out between chunks by a draw of its own; ``contiguous``, none
    left out (``v_i = 0``: the document's first ``window`` tokens); ``aligned``, as much left out as positions are
    skipped (``v_i = u_i``), or as the document has."""
    skips: Skips = "uniform"
    """The shifts of later chunks: ``uniform``, each between the one before and the end; ``sorted``, all drawn at once
    from 0 to the end and put in order, so that many chunks do not crowd there. With two chunks they are the same."""
    max_skip: int | None = None
    """Positions skipped at once, at most; None: as many as there are. Of ``uniform`` skips only."""

    def __post_init__(self) -> None:
        if self.chunks < 2:
            raise ValueError(f"chunks = {self.chunks}: PoSE needs 2 or more; pack rows instead of drawing one chunk")
        if self.window < self.chunks:
            raise ValueError(f"window = {self.window}: must hold a token for each of {self.chunks} chunks")
        if self.target < self.window:
            raise ValueError(f"target = {self.target}: must be at least the window, {self.window}")
        if self.reach is not None and self.reach < 1:
            raise ValueError(f"reach = {self.reach}: must be 1 window or more, or None")
        for name, kinds in (("content", Content), ("skips", Skips)):
            if getattr(self, name) not in get_args(kinds):
                raise ValueError(f"{name} = {getattr(self, name)!r}: one of {', '.join(get_args(kinds))}")
        if self.max_skip is not None and self.skips != "uniform":
            raise ValueError(f"max_skip = {self.max_skip}: skips are {self.skips}, only uniform ones have a limit")
        if self.max_skip is not None and self.max_skip < self.least_max_skip:
            raise ValueError(f"max_skip = {self.max_skip}: {self.least_max_skip} or more to reach the target")

    @property
    def least_max_skip(self) -> int:
        """The smallest :attr:`max_skip` with which the last chunk can reach position ``target - 1``."""
        return least_max_skip(self.window, self.target, self.chunks)

    def draw(self, tokens: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """One training row from one document.

        Args:
            tokens: the document, [n], n >= 1.
            rng: draws lengths, then content, then positions. The content is drawn whatever becomes of it, so that rows
                which differ in :attr:`content` alone have the same positions.

        Returns:
            ``(input_ids, position_ids)``, both [min(n, window)], the ids in the document's dtype, positions int64,
            rising strictly from 0 to ``target - 1`` at most. A document shorter than the window gives all its tokens,
            in order, with skipped positions; the collator pads the row.

        Raises:
            ValueError: the document is empty.
        """
        if self.reach is not None:
            tokens = tokens[: self.reach * self.window]
        count = min(len(tokens), self.window)
        if count == 0:
            raise ValueError("an empty document has nothing to draw from")
        lengths = draw_lengths(count, self.chunks, rng)
        moved = draw_shifts(len(lengths), len(tokens) - count, rng)
        shifts = self._draw_shifts(len(lengths), self.target - count, rng)
        if self.content == "contiguous":
            moved = np.zeros_like(shifts)
        elif self.content == "aligned":
            moved = np.minimum(shifts, len(tokens) - count)
        places = np.arange(count, dtype=np.int64)
        return tokens[places + np.repeat(moved, lengths)], places + np.repeat(shifts, lengths)

    def _draw_shifts(self, chunks: int, room: int, rng: np.random.Generator) -> np.ndarray:
        if self.skips == "sorted":
            return draw_sorted_shifts(chunks, room, rng)
        return draw_shifts(chunks, room, rng, self.max_skip)


def least_max_skip(window: int, target: int, chunks: int) -> int:
    """The smallest limit of one skip with which all skips together reach from ``window`` to ``target``."""
    return -(-(target - window) // (chunks - 1))


def draw_lengths(count: int, chunks: int, rng: np.random.Generator) -> np.ndarray:
    """Chunk lengths, int64 [chunks], each 1 or more, summing to ``count`` (fewer chunks when ``count`` is smaller)."""
    lengths: list[int] = []
    for left in range(min(chunks, count), 1, -1):
        rest = count - sum(lengths)
        lengths.append(int(rng.integers(1, -(-rest // left), endpoint=True)))
    return np.array([*lengths, count - sum(lengths)], dtype=np.int64)


def draw_shifts(chunks: int, room: int, rng: np.random.Generator, max_skip: int | None = None) -> np.ndarray:
    """Shifts, int64 [chunks]: the first 0, each next one uniform between the one before and ``room``, included.

    With ``max_skip`` each is at most that much beyond the one before.
    """
    shifts = [0]
    for _ in range(chunks - 1):
        end = room if max_skip is None else min(room, shifts[-1] + max_skip)
        shifts.append(int(rng.integers(shifts[-1], end, endpoint=True)))
    return np.array(shifts, dtype=np.int64)


def draw_sorted_shifts(chunks: int, room: int, rng: np.random.Generator) -> np.ndarray:
    """Shifts, int64 [chunks]: the first 0, the others drawn from 0 .. ``room``, both ends included, then sorted."""
    return np.array([0, *sorted(int(rng.integers(0, room, endpoint=True)) for _ in range(chunks - 1))], dtype=np.int64)
