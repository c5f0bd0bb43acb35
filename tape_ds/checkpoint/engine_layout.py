"""Where the engine keeps each parameter: which elements lie where in which rank's flat tensors, for every ZeRO stage.

Every rank holds a few flat tensors of fp32 weights, and optimizer states of the same sizes.

- Stages 1 and 2 lay the parameters of an optimizer group end to end and give each rank an equal, contiguous part of
  the whole, with padding at its end: one flat tensor for each group.
- Stage 3 cuts every parameter into equal slices, one for each rank and the last one padded, and lays a rank's slices
  end to end: one flat tensor for each sub-group, which is as many parameters of a group as fill ``sub_group_size``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Size

ALIGNMENT = 2
"""Stages 1 and 2 make each rank's part a multiple of this many elements."""
SUB_GROUP_SIZE = 1_000_000_000
"""Elements of a rank's sub-group at stage 3, where no configuration says otherwise."""

Shapes = Mapping[str, Size]
"""Parameters of a group by name, in the engine's order."""


@dataclass(frozen=True)
class Piece:
    """A run of a parameter's elements in a rank's flat tensor."""

    name: str
    at: int
    """Its first element within the parameter, flattened."""
    rank: int
    flat: int
    """Number of the flat tensor."""
    start: int
    """Its first element within the flat tensor."""
    count: int


@dataclass(frozen=True)
class Flat:
    """A flat tensor, of equal size on every rank."""

    group: int
    """Number of the optimizer's group."""
    shapes: Shapes
    size: int
    """Elements on each rank, padding included."""
    used: int
    """Elements of all ranks without the padding at the end; at stage 3 there is none but in each slice."""


@dataclass(frozen=True)
class Layout:
    """All flat tensors of a job of ``processes`` ranks."""

    processes: int
    flats: Sequence[Flat]
    pieces: Sequence[Piece]

    @cached_property
    def shapes(self) -> dict[str, Size]:
        """Of every parameter."""
        return {name: shape for flat in self.flats for name, shape in flat.shapes.items()}

    @cached_property
    def of_parameter(self) -> dict[str, list[Piece]]:
        """Pieces of a parameter, by its name, in the order of its elements."""
        found: dict[str, list[Piece]] = {name: [] for name in self.shapes}
        for piece in self.pieces:
            found[piece.name].append(piece)
        return found

    @cached_property
    def of_flat(self) -> dict[tuple[int, int], list[Piece]]:
        """Pieces by (rank, flat tensor), in the order in which they lie there."""
        found: dict[tuple[int, int], list[Piece]] = {}
        for piece in self.pieces:
            found.setdefault((piece.rank, piece.flat), []).append(piece)
        return found

    def groups(self) -> list[dict[str, Size]]:
        """Parameters of each of the optimizer's groups."""
        found: list[dict[str, Size]] = [{} for _ in range(1 + max(flat.group for flat in self.flats))]
        for flat in self.flats:
            found[flat.group] |= flat.shapes
        return found

    def padding(self, rank: int, flat: int) -> int:
        """Elements at the end of a rank's flat tensor that belong to no parameter."""
        size, used = self.flats[flat].size, self.flats[flat].used
        return min(size, max(0, (rank + 1) * size - used))


def joined(groups: Sequence[Shapes], processes: int, paddings: Sequence[Sequence[int]]) -> Layout:
    """The layout of stages 1 and 2.

    Args:
        groups: the optimizer's.
        processes: ranks that share the optimizer's states.
        paddings: elements left free behind each parameter of each group.
    """
    flats: list[Flat] = []
    pieces: list[Piece] = []
    for number, (shapes, behind) in enumerate(zip(groups, paddings, strict=True)):
        used = sum(shape.numel() for shape in shapes.values()) + sum(behind)
        size = ALIGNMENT * math.ceil(used / (ALIGNMENT * processes))
        flats.append(Flat(number, shapes, size, used))
        offset = 0
        for (name, shape), free in zip(shapes.items(), behind, strict=True):
            pieces += _cut(name, shape.numel(), number, offset, size)
            offset += shape.numel() + free
    return Layout(processes, flats, pieces)


def _cut(name: str, numel: int, flat: int, offset: int, size: int) -> Iterator[Piece]:
    """A parameter that begins at ``offset`` of the whole, cut where one rank's part ends and the next one's begins."""
    at = 0
    while at < numel:
        rank, start = divmod(offset + at, size)
        count = min(numel - at, size - start)
        yield Piece(name, at, rank, flat, start, count)
        at += count


def sliced(sub_groups: Sequence[tuple[int, Shapes]], processes: int) -> Layout:
    """The layout of stage 3.

    Args:
        sub_groups: each with the number of its group.
        processes: ranks that share each parameter.
    """
    flats: list[Flat] = []
    pieces: list[Piece] = []
    for number, (group, shapes) in enumerate(sub_groups):
        offset = 0
        for name, shape in shapes.items():
            slice_size = _slice_size(shape, processes)
            for rank in range(processes):
                at = rank * slice_size
                count = min(slice_size, shape.numel() - at)
                if count > 0:
                    pieces.append(Piece(name, at, rank, number, offset, count))
            offset += slice_size
        flats.append(Flat(group, shapes, offset, processes * offset))
    return Layout(processes, flats, pieces)


def divided(groups: Sequence[Shapes], processes: int, size: int = SUB_GROUP_SIZE) -> list[tuple[int, dict[str, Size]]]:
    """Sub-groups of stage 3, as the engine makes them: each ends with the parameter that fills it.

    Args:
        groups: the optimizer's.
        processes: ranks that share each parameter.
        size: elements of one rank that fill a sub-group.
    """
    found: list[tuple[int, dict[str, Size]]] = []
    for number, shapes in enumerate(groups):
        filled = size
        for name, shape in shapes.items():
            if filled >= size:
                found.append((number, {}))
                filled = 0
            found[-1][1][name] = shape
            filled += _slice_size(shape, processes)
    return found


def _slice_size(shape: Size, processes: int) -> int:
    return math.ceil(shape.numel() / processes)
