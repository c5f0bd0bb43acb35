"""Memory of one GPU by part, at the moments of a step when most is needed.

Model states follow ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, Section 3) as DeepSpeed 0.19 lays them out: 16-bit
weights, for each trained one a 16-bit gradient, and an fp32 master with two moments (12 bytes) that ZeRO-1 shards;
ZeRO-2 shards the gradients, ZeRO-3 the weights. Then there are the engine's buckets and, during the optimizer step,
fp32 gradients of the stepped weights.
"""

import functools
from dataclasses import dataclass, fields, replace

from tape_ds.planning import activations, shape
from tape_ds.planning.job import Job
from tape_ds.planning.shape import TrainedShape, total

CUDA_BYTES = 1.5e9
"""Memory of a process before it allocates anything: CUDA's context, NCCL's channels, cuBLAS's workspaces."""
FRAGMENTATION = 0.05
"""Share of temporary memory that is lost between blocks (with ``expandable_segments``; without, up to twice that)."""
OPTIMIZER_BYTES = 8
"""AdamW's two moments, fp32."""
MASTER_BYTES = 4
FOUR_BIT_BYTES = 4.127 / 8
"""Bytes of a number in double-quantised NormalFloat (QLoRA, Dettmers et al. 2023, arXiv:2305.14314, Section 3)."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one GPU at one moment, by part."""

    moment: str
    weights: float = 0.0
    gathered: float = 0.0
    """ZeRO-3: weights in use, and those on their way; without an engine, autocast's 16-bit copies."""
    gradients: float = 0.0
    optimizer: float = 0.0
    """Masters and moments."""
    checkpoints: float = 0.0
    """Hidden states that checkpointed layers keep."""
    activations: float = 0.0
    """Kept by the other layers, recomputed, and gradients of activations."""
    position_states: float = 0.0
    logits: float = 0.0
    buckets: float = 0.0
    """For reducing gradients and gathering weights."""
    reserve: float = 0.0
    """CUDA's own, and fragments."""

    def parts(self) -> dict[str, float]:
        return {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "moment"
        }

    @functools.cached_property
    def total(self) -> float:
        return sum(self.parts().values())


@dataclass(frozen=True)
class Estimate:
    """Memory of a job."""

    moments: tuple[MemoryPlan, ...]
    host: float
    """Offloaded bytes in the host's memory, for each GPU."""
    nvme: float
    """Offloaded bytes on the node's NVMe disks, for each GPU."""
    checkpoint: float
    """Bytes on disk of one checkpoint, all ranks together."""

    @property
    def peak(self) -> MemoryPlan:
        return max(self.moments, key=lambda each: each.total)


def estimate(job: Job, *, reserve: bool = True) -> Estimate:
    """Predict the memory of a job; without ``reserve``, the bytes of tensors alone."""
    layout = job.layout
    element = job.element
    trained = total(job.own, trained=True)
    found = activations.count(job)
    states, away = _states(job)

    # 16-bit gradients, and fp32 copies of what the optimizer steps on
    sharded = trained / layout.shards()
    fp32 = trained / layout.shards(1) * 4 if job.masters and element < 4 else 0.0
    if layout.zero == 3:
        boundary = accumulated = sharded * element
        step = boundary + min(sharded, layout.engine.sub_group) * (4 + element)
    else:
        boundary = (
            sharded * element
            if layout.zero == 2
            else trained * (element if layout.zero is not None else 4)
        )
        accumulated = boundary * (job.accumulation > 1)
        # the 16-bit gradients of a rank's part and its fp32 ones, which ZeRO-2 puts in their place
        copies = {1: sharded * element + fp32, 2: max(fp32, sharded * element)}
        step = boundary + copies.get(layout.zero or 0, fp32)
    if layout.offload_optimizer != "none":
        step = boundary

    forward = states | {"checkpoints": found.checkpoints, "position_states": found.states}
    forward["gradients"] = accumulated + found.head_weight
    freed = states | {"gathered": 0.0}
    kept = found.recomputed + found.working
    moments: tuple[MemoryPlan, ...] = (
        MemoryPlan("loss", **forward, activations=found.inside + found.head, logits=found.logits),
        MemoryPlan("backward", **forward, activations=found.inside + kept),
        MemoryPlan(
            "end of the backward",
            **(states if layout.zero == 3 else freed),
            activations=kept + (0 if found.recomputed else found.inside / job.model.layers),
            gradients=boundary,
        ),
        MemoryPlan("optimizer step", **freed, gradients=step),
    )
    if job.read_again:
        again = activations.reading(job)
        before = states | {"gradients": accumulated}
        moments += (
            MemoryPlan("short contexts", **before, activations=again.inside, logits=again.logits),
        )
    if not job.trained.anything:
        moments = (
            MemoryPlan(
                "forward",
                weights=states["weights"],
                gathered=states["gathered"],
                logits=found.logits,
            ),
        )
    if reserve:
        moments = tuple(
            replace(
                each,
                reserve=CUDA_BYTES + FRAGMENTATION * (each.total - each.weights - each.optimizer),
            )
            for each in moments
        )

    # trained weights as the model computes with them (twice: for the engine, and to be loaded by themselves)
    weights = 2 * element if layout.zero is not None else 4
    checkpoint = job.trained_parameters * (weights + OPTIMIZER_BYTES + MASTER_BYTES * job.masters)
    return Estimate(moments, away["cpu"] + found.offloaded, away["nvme"], checkpoint)


def _states(job: Job) -> tuple[dict[str, float], dict[str, float]]:
    """Return bytes that are allocated during the whole step, by part; and offloaded bytes, by place."""
    layout = job.layout
    engine = job.layout.engine
    element = job.element
    weight_element = element if layout.zero is not None else 4
    shared = total(job.own, trained=True) / layout.shards(1)
    everything = total(job.own)
    weights = float(everything * weight_element)
    gathered = 0.0
    buckets = 0.0
    # the blocks' frozen linear layers, in NormalFloat whose scales are quantised too
    if job.quantised:
        linears = sum(each.total for each in job.own if each.kind == "linear")
        weights -= linears * (weight_element - FOUR_BIT_BYTES)
    if layout.zero is None and element < 4:
        # autocast's copies, kept for the backward
        gathered = everything * element
    if layout.zero == 3:
        small = sum(each.total for each in job.own if each.size < engine.persistence)
        live = min(everything - small, engine.max_live)
        second = everything * element / engine.secondary if engine.secondary > 1 else 0.0
        weights = everything * element / layout.shards() + second + small * element
        gathered = (live + min(engine.prefetch_bucket, everything - small - live)) * element
        buckets = engine.reduce_bucket * element
    elif layout.zero:
        buckets = (1 + engine.overlap) * engine.reduce_bucket * element
    if job.distilled:
        base = (
            each for each in shape.tensors(job.model, TrainedShape()) if each.kind != "position"
        )
        weights += total(base) * element
    optimizer = shared * (OPTIMIZER_BYTES + MASTER_BYTES * job.masters)
    away = {"none": 0.0, "cpu": 0.0, "nvme": 0.0}
    if layout.offload_optimizer != "none":
        away[layout.offload_optimizer] += optimizer + shared * 4
        optimizer = 0.0
    if layout.offload_weights != "none":
        away[layout.offload_weights] += weights
        weights = 0.0
    return {
        "weights": weights,
        "gathered": gathered,
        "optimizer": optimizer,
        "buckets": buckets,
    }, away
