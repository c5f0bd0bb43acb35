"""Parameters that tensor-parallel ranks hold in pieces, read whole: which elements lie in which rank's piece.

Every rank m of P has files of its own, of an engine that knows of nothing but its pieces
(:class:`~tape_ds.checkpoint.engine_state.EngineState`), and they tell how each parameter was cut: along one dimension,
into P pieces of these sizes. A parameter that was not cut is whole on every rank.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Size, Tensor

from tape_ds.checkpoint.engine_state import TENSOR_PARALLEL, EngineState


@dataclass(frozen=True)
class Run:
    """Elements that lie next to each other in a parameter and in a rank's piece of it, both flattened."""

    tensor: int
    """Which rank's piece."""
    at: int
    """Their first within the piece."""
    to: int
    """Their first within what is read."""
    count: int


@dataclass(frozen=True)
class Cut:
    """How a parameter was cut."""

    dim: int
    sizes: tuple[int, ...]
    """Of each rank's piece along ``dim``; they may differ."""

    def whole(self, shape: Size) -> Size:
        """The parameter's shape, given that of a piece."""
        return self._with(shape, sum(self.sizes))

    def piece(self, shape: Size, tensor: int) -> Size:
        """The shape of a rank's piece, given that of the parameter."""
        return self._with(shape, self.sizes[tensor])

    def _with(self, shape: Size, size: int) -> Size:
        return Size((*shape[: self.dim], size, *shape[self.dim + 1 :]))

    def runs(self, shape: Size, start: int, end: int) -> Iterator[Run]:
        """Where elements ``start`` to ``end`` of a parameter of this whole shape lie, in their order."""
        inner = math.prod(shape[self.dim + 1 :])
        row = sum(self.sizes) * inner  # of all pieces, one behind another
        for number in range(start // row, math.ceil(end / row)):
            first = number * row
            for tensor, size in enumerate(self.sizes):
                low, high = max(start, first), min(end, first + size * inner)
                if low < high:
                    yield Run(tensor, number * size * inner + low - first, low - start, high - low)
                first += size * inner


class WholeState:
    """What an engine of ZeRO stage 1, 2 or 3 saved, of all its tensor-parallel ranks; without tensor parallelism there
    is one, and nothing is cut.

    Replicas of a parameter that was not cut are not compared with each other, and rank 0's is the one that counts: the
    trained folder, which :mod:`.consolidation` holds every weight to, has rank 0's too. Two others may differ in their
    last bit and be none the worse: each is trained by kernels of its own, and not all add in a fixed order.

    Args:
        folder: of the engine, ``global_stepN``.

    Raises:
        ValueError: as :class:`EngineState`; or the ranks' files do not belong together, or do not fit the cuts.
    """

    def __init__(self, folder: Path):
        first = EngineState(folder)
        rest = (EngineState(folder, tensor, first.shared) for tensor in range(1, first.tensor_size))
        self.states = [first, *rest]
        """By tensor-parallel rank."""
        self.cuts = _cuts(first)
        """Of each parameter that was cut."""
        for state in self.states[1:]:
            _check_alike(first, state)
        self.shapes = {name: self._whole_shape(name) for name in first.layout.shapes}
        """Of each parameter, whole."""

    @property
    def stage(self) -> int:
        """Of ZeRO."""
        return self.states[0].stage

    @property
    def processes(self) -> int:
        """Ranks of the job."""
        return len(self.states) * len(self.states[0].parts)

    @property
    def shared(self) -> Mapping[str, str]:
        """As :attr:`EngineState.shared`."""
        return self.states[0].shared

    def read(self, name: str, start: int, into: Tensor) -> None:
        """Copy elements of a parameter's fp32 weights, from ``start`` of the whole on and as many as ``into`` has,
        casting to its dtype, as :meth:`EngineState.read` does."""
        cut, into = self.cuts.get(name), into.view(-1)
        if cut is None:
            self.states[0].read(name, start, into)
            return
        for run in cut.runs(self.shapes[name], start, start + into.numel()):
            self.states[run.tensor].read(name, run.at, into[run.to : run.to + run.count])

    def _whole_shape(self, name: str) -> Size:
        shapes = [state.layout.shapes[name] for state in self.states]
        cut = self.cuts.get(name)
        if cut is not None and cut.dim >= len(shapes[0]):
            raise ValueError(f"{name} has {len(shapes[0])} dimensions, and was cut along number {cut.dim}")
        whole = shapes[0] if cut is None else cut.whole(shapes[0])
        for tensor, shape in enumerate(shapes):
            expected = whole if cut is None else cut.piece(whole, tensor)
            if shape != expected:
                wrong = f"is of shape {list(shape)} on tensor-parallel rank {tensor}, and not {list(expected)}"
                raise ValueError(f"{name} {wrong}: the files do not fit what they say of their cuts")
        return whole


def _cuts(state: EngineState) -> dict[str, Cut]:
    """Those of trained parameters: a frozen one, cut or not, is in no checkpoint.

    Raises:
        ValueError: they have another form than :data:`TENSOR_PARALLEL` has.
    """
    told = state.model.get(TENSOR_PARALLEL)
    try:
        cuts = {name: _cut(*told["cuts"][name]) for name in told["cuts"]} if told else {}
    except (LookupError, TypeError) as error:
        raise ValueError(f"what it says of its cuts has another form ({type(error).__name__}: {error})") from error
    for name, cut in cuts.items():
        numbers = (cut.dim, *cut.sizes)
        if len(cut.sizes) != state.tensor_size or any(type(each) is not int or each < 0 for each in numbers):
            raise ValueError(f"{name} was not cut into {state.tensor_size} pieces: {cut.dim}, {list(cut.sizes)}")
    return {name: cut for name, cut in cuts.items() if name in state.layout.shapes}


def _cut(dim: Any, sizes: Any) -> Cut:
    return Cut(dim, tuple(sizes))


def _check_alike(first: EngineState, other: EngineState) -> None:
    """Hold a rank's files to rank 0's.

    Raises:
        ValueError: they are of another job or another save; names what differs.
    """
    expected, found = _told(first), _told(other)
    for what, value in expected.items():
        if found[what] != value:
            wrong = f"another {what} than tensor-parallel rank 0's"
            raise ValueError(f"the files of tensor-parallel rank {other.tensor} tell of {wrong}")


def _told(state: EngineState) -> dict[str, Any]:
    """What the files of all tensor-parallel ranks of a job agree on, by what it is called."""
    return {
        "step": state.model.get("global_steps"),
        "ZeRO stage": state.stage,
        "tensor_parallel_size": state.tensor_size,
        "cut of the parameters": _cuts(state),
        "list of parameters": [list(group) for group in state.layout.groups()],
        "list of tied parameters": dict(state.shared),
    }
