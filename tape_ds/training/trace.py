"""What a recorded trace says of a step: where its time and memory went, and what was communicated.

Reads the Chrome trace that torch's profiler wrote while :mod:`.profiling` marked phases of a step and parts of the
model in it; so a summary can be taken again from a stored trace, and from one of another machine.

- A **phase** (data, forward, backward, optimizer) is a stretch of the main thread's time; work belongs to the phase it
  was started in, wherever it ran.
- A **part** (attention, feed-forward, ...) is what an operator was called from. A backward operator belongs to the part
  of the forward operator with its sequence number, by which the profiler ties the two; what a block computes again is
  called from its part a second time.
- Times are an operator's own, without what it calls, so that they add up. On a GPU the times are its kernels'.
"""

import bisect
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "tape_ds"
WINDOW = f"{PREFIX} window"
"""Mark around everything that was recorded."""
PHASE = f"{PREFIX} phase: "
PART = f"{PREFIX} part: "
REST = "other"
"""Phase and part of what is in none."""
PHASES = ("data", "forward", "backward", "optimizer", REST)
"""In the order of a step."""

_ON_CPU = ("cpu_op", "user_annotation", "python_function")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_BACKWARD = "autograd::engine::evaluate_function"
_GLOO = "gloo:"
_NCCL = "record_param_comms"
_NCCL_KERNELS = ("ncclDevKernel", "ncclKernel")
_BYTES = {
    **dict.fromkeys(("double", "long int", "long"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("bfloat16", "half", "short"), 2),
    **dict.fromkeys(("byte", "unsigned char", "signed char", "char", "bool"), 1),
}
"""Of an element, by the profiler's names in small letters."""
_ROUNDING = 0.01
"""Microseconds by which what is called may end after its caller."""
_CUDA = 1
"""The profiler's number of the device type."""


class Span(NamedTuple):
    """A stretch of time on one thread; microseconds."""

    name: str
    thread: int
    begin: float
    end: float
    args: Mapping[str, Any]


@dataclass(frozen=True)
class Collective:
    """What one kind of collective did, on this rank."""

    name: str
    count: int
    bytes: int | None
    """That this rank gave; None where the trace does not say."""
    milliseconds: float


@dataclass(frozen=True)
class Summary:
    """What a trace says; milliseconds and bytes, of all recorded steps together."""

    window: float
    """Wall time of all of it."""
    phases: dict[str, float]
    """Wall time by phase."""
    on_device: bool
    """Whether the times by part are a GPU's kernels', or else the CPU's."""
    parts: dict[str, dict[str, float]]
    """Part -> phase -> time."""
    collectives: list[Collective] = field(default_factory=list)
    communicating: float = 0.0
    """Wall time in which at least one collective was under way; computing may go on meanwhile."""
    highest: dict[str, int] = field(default_factory=dict)
    """Bytes at the highest by phase, above those held when recording began."""
    highest_part: str = REST
    """What the highest of all was reached in."""


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a stored trace, compressed or not."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def summarise(events: Iterable[Mapping[str, Any]]) -> Summary:
    """See :class:`Summary`.

    Raises:
        ValueError: no mark of :mod:`.profiling` in it.
    """
    events = list(events)
    spans = [_span(event) for event in events if event.get("ph") == "X" and event.get("cat") in _ON_CPU]
    window = next((span for span in spans if span.name == WINDOW), None)
    if window is None:
        raise ValueError(f"the trace has no {WINDOW!r}: it was not recorded by this stack")
    phases = _Phases([span for span in spans if span.name.startswith(PHASE)], window)
    placed = _Placed(spans, window)
    device = [_span(event) for event in events if event.get("ph") == "X" and event.get("cat") in _ON_DEVICE]
    collectives, communicating = _communication(spans, device)
    highest, at = _memory(events, phases, window)
    return Summary(
        window=(window.end - window.begin) / 1e3,
        phases=phases.totals(),
        on_device=bool(device),
        parts=_of_kernels(device, placed, phases) if device else _of_operators(placed, phases),
        collectives=collectives,
        communicating=communicating,
        highest=highest,
        highest_part=REST if at is None else placed.part_at(*at),
    )


def _span(event: Mapping[str, Any]) -> Span:
    begin = float(event["ts"])
    return Span(event["name"], event.get("tid", 0), begin, begin + float(event.get("dur", 0)), event.get("args", {}))


class _Phases:
    """Which phase a moment is in."""

    def __init__(self, spans: Sequence[Span], window: Span):
        self.window = window
        self.spans = [span for span in spans if window.begin <= span.begin < window.end]
        edges = {window.begin, window.end} | {time for span in self.spans for time in (span.begin, span.end)}
        self.edges = sorted(time for time in edges if window.begin <= time <= window.end)
        self.names = [self._innermost((low + high) / 2) for low, high in zip(self.edges, self.edges[1:], strict=False)]

    def _innermost(self, time: float) -> str:
        around = [span for span in self.spans if span.begin <= time < span.end]
        return max(around, key=lambda span: span.begin).name.removeprefix(PHASE) if around else REST

    def at(self, time: float) -> str:
        """The phase of a moment."""
        place = bisect.bisect_right(self.edges, time) - 1
        return self.names[min(max(place, 0), len(self.names) - 1)]

    def totals(self) -> dict[str, float]:
        """Milliseconds of each phase."""
        found = dict.fromkeys(PHASES, 0.0)
        for name, low, high in zip(self.names, self.edges, self.edges[1:], strict=False):
            found[name] = found.get(name, 0.0) + (high - low) / 1e3
        return found


@dataclass
class _Open:
    """An operator whose end is still to come."""

    span: Span
    part: str
    inner: float = 0.0
    """Time of what it called."""


class _Placed:
    """Every operator with the part it belongs to and its own time."""

    def __init__(self, spans: Sequence[Span], window: Span):
        self.main = window.thread
        self.operators: list[tuple[Span, str, float]] = []
        """Span, part, milliseconds of its own."""
        self.of_id: dict[int, tuple[str, float]] = {}
        """The profiler's number of an operator -> its part and when it began."""
        self.sequence: dict[int, str] = {}
        """Sequence number -> the part of the forward operator that made the node."""
        by_thread: dict[int, list[Span]] = defaultdict(list)
        for span in spans:
            if window.begin <= span.begin < window.end:
                by_thread[span.thread].append(span)
        # the main thread first: the backward's, another one on a GPU, refers to it
        for thread in sorted(by_thread, key=lambda thread: thread != self.main):
            self._place(thread, sorted(by_thread[thread], key=lambda span: (span.begin, -span.end)))

    def _place(self, thread: int, spans: Sequence[Span]) -> None:
        stack: list[_Open] = []

        def close(time: float) -> None:
            done = stack.pop()
            taken = min(done.span.end, time) - done.span.begin
            self.operators.append((done.span, done.part, max(taken - done.inner, 0.0) / 1e3))
            if stack:
                stack[-1].inner += taken

        for span in spans:
            # under a dispatch mode a mark begins inside the call that sets it, and outlives it: that call is cut short
            while stack and (stack[-1].span.end <= span.begin or span.end > stack[-1].span.end + _ROUNDING):
                close(span.begin)
            part = self._part(span, stack[-1].part if stack else REST, thread)
            stack.append(_Open(span, part))
            if "External id" in span.args:
                self.of_id[span.args["External id"]] = (part, span.begin)
        while stack:
            close(math.inf)

    def _part(self, span: Span, around: str, thread: int) -> str:
        if span.name.startswith(PART):
            return span.name.removeprefix(PART)
        number = span.args.get("Sequence number")
        if number is None:
            return around
        if span.name.startswith(_BACKWARD):
            return self.sequence.get(number, around)
        if thread == self.main:
            self.sequence[number] = around  # the last one with a number makes the node; those before only ask for it
        return around

    def part_at(self, thread: int, time: float) -> str:
        """The part of the innermost operator around a moment."""
        around = [(span, part) for span, part, _ in self.operators if span.thread == thread]
        around = [(span, part) for span, part in around if span.begin <= time <= span.end]
        return max(around, key=lambda pair: pair[0].begin)[1] if around else REST


def _of_operators(placed: _Placed, phases: _Phases) -> dict[str, dict[str, float]]:
    """Part -> phase -> own time of the main thread's operators, which wait for all others."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span, part, own in placed.operators:
        if span.thread == placed.main:
            found[part][phases.at(span.begin)] += own
    return {part: dict(times) for part, times in found.items()}


def _of_kernels(device: Sequence[Span], placed: _Placed, phases: _Phases) -> dict[str, dict[str, float]]:
    """Part -> phase -> time of kernels, by the operator that started each; a collective's is its own part."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel in device:
        part, began = placed.of_id.get(kernel.args.get("External id", -1), (REST, kernel.begin))
        if kernel.name.startswith(_NCCL_KERNELS):
            part = "communication"
        found[part][phases.at(began)] += (kernel.end - kernel.begin) / 1e3
    return {part: dict(times) for part, times in found.items()}


def _communication(spans: Sequence[Span], device: Sequence[Span]) -> tuple[list[Collective], float]:
    """Collectives by name, and the milliseconds in which one was under way."""
    gloo = [span for span in spans if span.name.startswith(_GLOO)]
    kernels = [span for span in device if span.name.startswith(_NCCL_KERNELS)]
    under_way = gloo + kernels
    given: dict[str, list[int | None]] = defaultdict(list)
    times: dict[str, float] = defaultdict(float)
    for span in gloo:
        given[_plain(span.name.removeprefix(_GLOO))].append(_input_bytes(span.args))
    for span in spans:
        if span.name == _NCCL and span.args.get("Collective name") not in (None, "", "wait"):
            elements = span.args.get("In msg nelems", 0)
            size = _BYTES.get(_plain_type(str(span.args.get("dtype", ""))))
            given[_plain(str(span.args["Collective name"]))].append(None if size is None else elements * size)
    for span in under_way:
        times[_collective_of(span)] += (span.end - span.begin) / 1e3
    found = []
    for name in sorted({*given, *times}):
        sizes = given.get(name, [])
        known = [size for size in sizes if size is not None]
        total = sum(known) if len(known) == len(sizes) else None
        found.append(Collective(name, len(sizes), total, times.get(name, 0.0)))
    return found, sum(high - low for low, high in _joined(under_way)) / 1e3


def _collective_of(span: Span) -> str:
    if span.name.startswith(_GLOO):
        return _plain(span.name.removeprefix(_GLOO))
    if said := span.args.get("Collective name"):
        return _plain(str(said))
    # ncclDevKernel_AllGather_RING_LL(...)
    return _plain(span.name.split("_")[1] if "_" in span.name else span.name)


def _plain(name: str) -> str:
    """One name for what backends call ``allgather``, ``_allgather_base``, ``AllGather`` and ``all_gather``."""
    bare = name.lower().replace("_", "").replace("base", "").replace("coalesced", "").replace("intotensor", "")
    known = {"allgather": "all_gather", "allreduce": "all_reduce", "reducescatter": "reduce_scatter"}
    known |= {"alltoall": "all_to_all", "alltoallsingle": "all_to_all", "sendrecv": "all_to_all"}
    return known.get(bare, bare)


def _plain_type(name: str) -> str:
    return name.lower().removeprefix("c10::")


def _input_bytes(args: Mapping[str, Any]) -> int | None:
    """Of the first input that has a shape; 0 where there is none (a barrier)."""
    shapes, types = args.get("Input Dims", []), args.get("Input type", [])
    if not shapes:
        return 0
    size = _BYTES.get(_plain_type(types[0])) if types else None
    return None if size is None else size * math.prod(shapes[0])  # a list of tensors has no type of its own


def _joined(spans: Sequence[Span]) -> Iterator[tuple[float, float]]:
    """The stretches that spans cover together."""
    reach: tuple[float, float] | None = None
    for span in sorted(spans, key=lambda span: span.begin):
        if reach is None or span.begin > reach[1]:
            if reach is not None:
                yield reach
            reach = (span.begin, span.end)
        else:
            reach = (reach[0], max(reach[1], span.end))
    if reach is not None:
        yield reach


def _memory(
    events: Sequence[Mapping[str, Any]], phases: _Phases, window: Span
) -> tuple[dict[str, int], tuple[int, float] | None]:
    """The highest level by phase, above that of the window's begin; and thread and moment of the highest of all."""
    found = [event for event in events if event.get("name") == "[memory]"]
    kind = max((event["args"].get("Device Type", 0) for event in found), default=0)
    kind = _CUDA if kind == _CUDA else 0
    found = [event for event in found if event["args"].get("Device Type", 0) == kind]
    level, highest, top, at = 0, dict.fromkeys(PHASES, 0), 0, None
    for event in sorted(found, key=lambda event: float(event["ts"])):
        time = float(event["ts"])
        if not window.begin <= time < window.end:
            continue
        level += int(event["args"]["Bytes"])
        phase = phases.at(time)
        highest[phase] = max(highest.get(phase, 0), level)
        if level > top:
            top, at = level, (event.get("tid", 0), time)
    return highest, at
