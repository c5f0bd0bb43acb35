"""Which way to spread a job is the fastest that fits, what is wrong with the others, and how far one way reaches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tape_ds.planning import clock, memory
from tape_ds.planning.clock import Clock
from tape_ds.planning.job import Job, problems
from tape_ds.planning.layout import POLICIES, Layout, Offload
from tape_ds.planning.memory import Estimate

LONG = 65_536
"""Tokens from which the search tries feed-forwards in tiles."""
TILES = 8
LENGTH_STEP = 1024
LONGEST = 2**24


@dataclass(frozen=True)
class Candidate:
    """One way, and what it costs."""

    job: Job
    memory: Estimate
    clock: Clock | None
    """None where it does not fit."""

    @property
    def fits(self) -> bool:
        """Whether GPU and host have room."""
        return self.clock is not None

    @property
    def layout(self) -> Layout:
        """How it is spread."""
        return self.job.layout


def room(job: Job) -> float:
    """Bytes that the GPU of a job has; without one nobody says, and everything fits."""
    return float("inf") if job.gpu is None else job.gpu.memory


def fits(job: Job, estimate: Estimate | None = None) -> bool:
    """Whether a job fits its GPU, and what it offloads the host."""
    found = memory.estimate(job) if estimate is None else estimate
    host = float("inf") if job.gpu is None else job.gpu.host_memory
    return found.peak.total <= room(job) and found.host <= host


def try_out(job: Job) -> Candidate:
    """Memory of a job, and its time where it fits."""
    found = memory.estimate(job)
    return Candidate(job, found, clock.of(job) if job.gpu is not None and fits(job, found) else None)


def search(job: Job) -> list[Candidate]:
    """Every way to spread a job, those that fit first, the fastest of them at the head; of the others that first which
    needs least. Offload to the host is tried only where nothing fits without."""
    found = [try_out(each) for each in _ways(job, offload=False)]
    if not any(each.fits for each in found):
        found += [try_out(each) for each in _ways(job, offload=True)]
    return sorted(found, key=_rank)


def _rank(found: Candidate) -> tuple[bool, float, int]:
    simple = found.layout.tensor + found.layout.sequence + (found.layout.zero or 0)
    if found.clock is None:
        return True, found.memory.peak.total, simple
    return False, found.clock.step, simple


def _ways(job: Job, offload: bool) -> Iterator[Job]:
    layout = job.layout
    for tensor in _powers(min(layout.gpus, 8 if job.gpu is None else job.gpu.per_node)):
        for sequence in _powers(layout.gpus // tensor):
            for zero in (1, 2, 3):
                spread = replace(layout, tensor=tensor, sequence=sequence, zero=zero, micro_batch=1)
                if not problems(replace(job, layout=spread)):
                    yield from _policies(replace(job, layout=spread), offload)


def _policies(job: Job, offload: bool) -> Iterator[Job]:
    layout, trains = job.layout, job.trained.anything
    for micro_batch in _powers(job.global_batch // layout.replicas):
        for again in POLICIES if trains else (None,):
            for tiles in (1, TILES) if job.length >= LONG and again == 1 else (1,):
                plain = replace(
                    layout,
                    micro_batch=micro_batch,
                    checkpoint_layers=again,
                    mlp_tiles=tiles,
                    offload_checkpoints=False,
                    offload_optimizer="none",
                    offload_weights="none",
                )
                if not offload:
                    yield replace(job, layout=plain)
                    continue
                yield from (replace(job, layout=each) for each in _offloads(plain))


_WEIGHTS: tuple[Offload, ...] = ("none", "cpu")


def _offloads(layout: Layout) -> Iterator[Layout]:
    for checkpoints in (False, True) if layout.checkpoint_layers == 1 else (False,):
        for weights in _WEIGHTS if layout.zero == 3 else _WEIGHTS[:1]:
            yield replace(
                layout,
                offload_checkpoints=checkpoints,
                offload_optimizer="cpu",
                offload_weights=weights,
            )


def _powers(largest: int) -> list[int]:
    """1, 2, 4, ... up to ``largest``."""
    return [2**power for power in range(max(1, largest).bit_length())]


def explain(found: list[Candidate]) -> list[str]:
    """Why the head of a search won: beside it, the best of those that differ from it in one lever alone."""
    winner = found[0]
    if winner.clock is None:
        least = winner.memory.peak.total / 1e9
        return [f"nothing fits: the least is {least:,.1f} GB a GPU by {winner.layout.name()}"]
    lines = []
    for lever, name in _LEVERS.items():
        rivals = [each for each in found[1:] if _differs_only_in(each.layout, winner.layout, lever)]
        told: set[object] = set()
        for rival in rivals:
            value = getattr(rival.layout, lever)
            if value in told:
                continue
            told.add(value)
            lines.append(f"{name} {value}: {_verdict(rival, winner)}")
    return lines


_LEVERS = {
    "zero": "ZeRO",
    "tensor": "tensor parallelism",
    "sequence": "sequence parallelism",
    "checkpoint_layers": "checkpointing",
    "micro_batch": "micro-batch",
    "mlp_tiles": "feed-forward tiles",
    "offload_checkpoints": "checkpoint offload",
    "offload_weights": "weight offload",
}


def _differs_only_in(one: Layout, other: Layout, lever: str) -> bool:
    if getattr(one, lever) == getattr(other, lever):
        return False
    return replace(one, **{lever: getattr(other, lever)}) == other


def _verdict(rival: Candidate, winner: Candidate) -> str:
    assert winner.clock is not None
    if rival.clock is None:
        return f"does not fit, {rival.memory.peak.total / 1e9:,.1f} GB"
    slower = rival.clock.step / winner.clock.step - 1
    parts = {
        "matrix products": rival.clock.linear - winner.clock.linear,
        "attention": rival.clock.attention - winner.clock.attention,
        "the optimizer": rival.clock.optimizer - winner.clock.optimizer,
        "waiting for others": rival.clock.waiting - winner.clock.waiting,
        "memory-bound operators": rival.clock.memory_bound - winner.clock.memory_bound,
    }
    cause = max(parts, key=lambda name: parts[name])
    if slower < 0.001:
        return "as fast"
    return f"{slower:.1%} slower, for {cause} (+{parts[cause]:.3g} s)"


def largest_length(job: Job) -> int:
    """Tokens of the longest rows that fit, one on each data-parallel rank; 0 where none does."""
    step = LENGTH_STEP * job.layout.sequence
    single = replace(job, layout=replace(job.layout, micro_batch=1), global_batch=job.layout.replicas)
    return step * _largest(LONGEST // step, lambda count: fits(replace(single, length=count * step)))


def largest_micro_batch(job: Job) -> int:
    """Rows of the largest micro-batch that fits; 0 where not even one does."""
    return _largest(4096, lambda rows: fits(replace(job, layout=replace(job.layout, micro_batch=rows))))


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number from 0 to ``most`` for which ``holds``, which is true up to some number and never after."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
