"""Search over the layouts of a job: the fastest that fits, the nearest that fits, and the longest sequences."""

import bisect
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from tape_ds.distributed.layout import Engine, Layers, Layout
from tape_ds.errors import Problem
from tape_ds.planning.job import Job, possible
from tape_ds.planning.prediction import GIB, Plan

POLICIES: tuple[Layers | None, ...] = (None, 1, "selective")
"""Policies of checkpointing that a search tries."""
LONG = 65_536
"""Tokens from which the search tries feed-forwards in tiles."""
TILES = 8
SPARE = 1 / 8
"""Share of a GPU's memory that :func:`fastest` leaves free: 9.9 GiB of an A100's 79.3. Predictions are up to 6 % off
(``tests/planning/test_against_tensors.py``), and leave out scoring, which takes up to 5 GiB (docs/memory.md)."""
TIE = 0.01
"""Relative difference between two predicted times that means nothing: launches and hooks have no time here."""
BUSY = 16_384
"""Tokens of a forward that keep a GPU busy; with fewer, launching kernels takes time that is not predicted."""
LENGTH_STEP = 1024
LONGEST = 2**24


def search(job: Job) -> list[Plan]:
    """Return every layout of a job, fitting ones first, the fastest first; the others by the memory they need. Offload
    to the host is tried only where nothing fits without it."""
    found = [Plan(replace(job, layout=each)) for each in _layouts(job, offload=False)]
    if not any(each.fits for each in found):
        found += [Plan(replace(job, layout=each)) for each in _layouts(job, offload=True)]

    def order(plan: Plan) -> tuple[bool, float, int]:
        layout = plan.job.layout
        simple = layout.tensor + layout.sequence + (layout.zero or 0)
        timed = plan.fits and job.gpu is not None
        return not plan.fits, plan.step.all if timed else plan.memory.peak.total, simple

    return sorted(found, key=order)


def _layouts(job: Job, *, offload: bool) -> Iterator[Layout]:
    """Yield every possible layout with the engines of ``ds_configs`` (with ``offload``, those that offload)."""
    gpus = job.layout.world
    policies = POLICIES if job.trained.anything else (None,)
    tensors = _powers(min(gpus, 8 if job.gpu is None else job.gpu.per_node))
    engines = _engines(job)
    if offload:
        moved = {"offload_optimizer": "cpu"}
        engines = [{**engines[1], **moved}, {**engines[2], **moved, "offload_weights": "cpu"}]
    for engine, tensor, sequence in product(engines, tensors, _powers(gpus)):
        if gpus % (tensor * sequence) or min(tensor, sequence) > 1:
            continue
        spread = Layout(gpus, sequence, tensor, **engine)
        if not possible(replace(job, layout=spread)):
            continue
        for sequences, again in product(_powers(job.global_batch // spread.data), policies):
            layout = replace(spread, micro_batch=sequences, checkpoint_layers=again)
            if not possible(replace(job, layout=layout)):
                continue
            yield layout
            if again == 1 and job.length >= LONG and not job.model.counted:
                yield replace(layout, mlp_tiles=TILES)
            if again == 1 and offload:
                yield replace(layout, offload_checkpoints=True)


def _engines(job: Job) -> list[dict[str, Any]]:
    sizes = {1: Engine(), 2: Engine(), 3: Engine.zero_3(job.model.hidden)}
    return [{"zero": stage, "engine": engine} for stage, engine in sizes.items()]


def fastest(job: Job, open_fields: Collection[str]) -> list[Plan]:
    """Return the layouts that differ from a job's in these fields of its recipe alone and leave :data:`SPARE` of the
    GPU's memory free, the fastest first; none on a CPU. Among ties, the lowest stage first, then the smallest forward
    that keeps a GPU busy."""
    layout = job.layout
    gpu = job.gpu
    if gpu is None:
        return []
    engines = _engines(job) if "deepspeed" in open_fields else [{}]
    sequences = (
        _powers(job.global_batch // layout.data)
        if "per_device_train_batch_size" in open_fields
        else [layout.micro_batch]
    )
    policies = {layout.checkpoint_layers}
    if "activation_checkpointing" in open_fields:
        policies |= set(POLICIES) if "checkpoint_layers" in open_fields else {None}
    jobs = [
        replace(job, layout=replace(layout, **engine, micro_batch=each, checkpoint_layers=again))
        for engine, each, again in product(engines, sequences, policies)
    ]
    found = [Plan(each) for each in jobs if possible(each)]
    roomy = [
        each for each in found if each.fits and each.memory.peak.total <= (1 - SPARE) * gpu.memory
    ]
    least = min((each.step.all for each in roomy), default=0.0)

    def order(plan: Plan) -> tuple[float, int, int, float]:
        tied = plan.step.all <= (1 + TIE) * least
        stage = plan.job.layout.zero or 0
        tokens = min(plan.job.tokens, BUSY)
        return 0.0 if tied else plan.step.all, stage, -tokens, plan.memory.peak.total

    return sorted(roomy, key=order)


def _powers(largest: int) -> list[int]:
    return [2**power for power in range(max(1, largest).bit_length())]


def refusal(plan: Plan) -> list[Problem]:
    """Return the problems of a run that needs more memory than its GPU or its host has; none on a CPU."""
    job = plan.job
    found = plan.memory
    if job.gpu is None or plan.fits:
        return []
    ranked = search(job)
    fitting = [each.job.layout for each in ranked if each.fits]
    longest = largest_length(ranked[0].job) if ranked else 0
    if fitting:
        remedy = min(fitting, key=lambda each: len(each.changes(job.layout))).command_line(
            job.layout
        )
    else:
        shorter = "a smaller model"
        if longest:
            shorter = f"sequences of {longest:,} tokens"
        remedy = f"nothing fits on {job.layout.world} of them: more GPUs, or {shorter}"
    problems = []
    for field, needed, there, words in (
        (
            "memory",
            found.peak.total,
            job.gpu.memory,
            f"in the {found.peak.moment}, and a {job.gpu.name} has",
        ),
        (
            "offload",
            found.host,
            job.gpu.host_memory,
            "of the host's memory for each GPU, and there are",
        ),
    ):
        if needed > there:
            wrong = f"{needed / GIB:,.1f} GiB would be needed {words} {there / GIB:,.1f}"
            parts = f" ({plan.largest_parts(0.1)})" if field == "memory" else ""
            problems.append(
                Problem(
                    field, job.layout.command_line(), wrong + parts, f"{remedy}, or --force to try"
                )
            )
    return problems


def largest_length(job: Job) -> int:
    """Return tokens of the longest sequences that fit, one on each data-parallel rank; 0 if none do."""
    step = LENGTH_STEP * job.layout.sequence
    single = replace(job, layout=replace(job.layout, micro_batch=1), global_batch=job.layout.data)
    counts = range(1, LONGEST // step + 1)
    return step * bisect.bisect_left(
        counts, True, key=lambda count: not Plan(replace(single, length=count * step)).fits
    )


def largest_micro_batch(job: Job) -> int:
    """Return the largest micro-batch that fits; 0 if none does."""

    def overflows(sequences: int) -> bool:
        return not Plan(replace(job, layout=replace(job.layout, micro_batch=sequences))).fits

    return bisect.bisect_left(range(1, 4097), True, key=overflows)
