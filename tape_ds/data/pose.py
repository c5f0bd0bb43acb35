"""PoSE: long positions from short windows, by skipping (Zhu et al., 2023, arXiv 2309.10400).

A window of ``c`` tokens is cut into chunks. Positions jump forward between chunks, so that over many draws every
distance up to the target length is seen at the cost of ``c`` tokens. The content jumps too, by a separate draw: chunks
are pieces of one document, in order, with text left out between them.

The rules are those of the authors' ``train_pose.py`` for two chunks, generalised to any number:

- Lengths: of ``r`` tokens left for ``k`` chunks, the next takes 1 .. ceil(r / k), uniformly; the last takes the rest.
- Positions: chunk ``i`` is shifted by ``u_i``; ``u_1 = 0`` and ``u_i`` is uniform in ``u_(i-1) .. T - c``, both ends
  included. So positions start at 0, rise strictly, and reach at most ``T - 1``.
- Content: chunk ``i`` is moved forward by ``v_i`` in the document; ``v_1 = 0`` and ``v_i`` is uniform in
  ``v_(i-1) .. n - c``, ``n`` the document's length.

The paper (section 3.2) compares this ``v`` with two others; :attr:`Pose.content` offers all three. A draw comes from
(seed, sample index) alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from tape_ds.errors import Problem
from tape_ds.fields import Section


class Pose(Section):
    chunks: int = Field(1, ge=1)
    """1: sequences are packed. 2 or more: sequences are drawn from one document in that many chunks, positions skipping
    ahead between them up to target_length (PoSE)."""
    reach: int | None = Field(None, ge=1)
    """PoSE draws from this many windows at a document's start; null: from all of it. The published code has 5."""
    content: Literal["skipped", "contiguous", "aligned"] = "skipped"
    """The text between PoSE's chunks: ``skipped`` (left out, by a separate draw), ``contiguous`` (none left out) or
    ``aligned`` (as much left out as positions are skipped, as far as the document reaches)."""
    skips: Literal["uniform", "sorted"] = "uniform"
    """PoSE's positions: ``uniform`` (each chunk's skip after the one before) or ``sorted`` (all skips at once, in
    order: no crowding near target_length). Two chunks: the same."""

    def problems(self, window: int, target: int) -> Iterator[Problem]:
        """Yield why sequences of ``window`` tokens cannot reach ``target``, or options that one chunk does not have."""
        if self.chunks == 1:
            for name, value in self.flat("pose_").items():
                if name != "pose_chunks" and value != Pose().flat("pose_")[name]:
                    wrong = "an option of PoSE, and pose_chunks = 1 packs sequences"
                    yield Problem(name, value, wrong, "remove it, or give pose_chunks: 2 or more")
        elif window >= target:
            wrong = f"leaves nothing to skip: it is target_length = {target} itself"
            yield Problem("window", window, wrong, "give a shorter window, or pose_chunks: 1")
        elif window < self.chunks:
            wrong = f"too short for {self.chunks} chunks"
            yield Problem("window", window, wrong, "give a token or more for each chunk")


@dataclass(frozen=True)
class PoseSequences:
    """Sequences of ``window`` tokens (``c``) with positions in 0 .. ``target`` - 1 (``T``)."""

    window: int
    target: int
    pose: Pose

    def draw(self, tokens: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(input_ids, position_ids)`` from one document [n], n >= 1.

        Both are [min(n, window)]; positions are int64 and rise strictly from 0 to ``target - 1`` at most. A document
        shorter than the window gives all its tokens with skipped positions; the collator pads the sequence.
        """
        pose = self.pose
        if pose.reach is not None:
            tokens = tokens[: pose.reach * self.window]
        count = min(len(tokens), self.window)
        lengths = draw_lengths(count, pose.chunks, rng)
        # drawn also if unused, so that sequences which differ in Pose.content alone have the same positions
        moved = draw_shifts(len(lengths), len(tokens) - count, rng)
        shifts = draw_shifts(len(lengths), self.target - count, rng, at_once=pose.skips == "sorted")
        if pose.content == "contiguous":
            moved = np.zeros_like(shifts)
        elif pose.content == "aligned":
            moved = np.minimum(shifts, len(tokens) - count)
        places = np.arange(count, dtype=np.int64)
        return tokens[places + np.repeat(moved, lengths)], places + np.repeat(shifts, lengths)

    def positions(self, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the positions of chunks of these lengths, whose text is as it is: int64 [sum of lengths]."""
        count = int(lengths.sum())
        shifts = draw_shifts(
            len(lengths), self.target - count, rng, at_once=self.pose.skips == "sorted"
        )
        return np.arange(count, dtype=np.int64) + np.repeat(shifts, lengths)


def draw_lengths(count: int, chunks: int, rng: np.random.Generator) -> np.ndarray:
    """Return chunk lengths, int64 [chunks], each 1 or more, with sum ``count``; fewer chunks if it is smaller."""
    lengths: list[int] = []
    for left in range(min(chunks, count), 1, -1):
        rest = count - sum(lengths)
        lengths.append(int(rng.integers(1, -(-rest // left), endpoint=True)))
    return np.array([*lengths, count - sum(lengths)], dtype=np.int64)


def draw_shifts(
    chunks: int, room: int, rng: np.random.Generator, *, at_once: bool = False
) -> np.ndarray:
    """Return int64 [chunks], rising: the first is 0, each next one uniform between the previous one and ``room``, both
    included; ``at_once``: all between 0 and ``room``, then sorted."""
    shifts = [0]
    for _ in range(chunks - 1):
        shifts.append(int(rng.integers(0 if at_once else shifts[-1], room, endpoint=True)))
    return np.array(sorted(shifts), dtype=np.int64)
