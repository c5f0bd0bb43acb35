"""Plans by the hundred: published sizes, lengths and numbers of GPUs, and what each lever does to one of them."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tape_ds.planning import clock, memory, search, shape, traffic
from tape_ds.planning.hardware import find
from tape_ds.planning.job import Job
from tape_ds.planning.layout import Layout
from tape_ds.planning.shape import Trained

MODELS = ("llama2-7b", "llama2-13b", "llama2-70b")
LENGTHS = (8_192, 32_768, 131_072)
GPU_COUNTS = (8, 32, 128, 512, 1024)
GPU_NAMES = ("a100-80", "h100-80", "h200")
METHODS = {"full": Trained.everything(), "frozen base": Trained(norms=True, positions=True)}
"""What is trained: every parameter, or TAPE's position updates and the norms."""
STRONG_TOKENS = 4_194_304
"""Of a step, however many GPUs take it: 512 rows of 8,192 tokens."""
WEAK_TOKENS = 16_384
"""Of a step for each GPU: one row of 131,072 tokens for 8."""
Scaling = Literal["strong", "weak"]
SCALINGS: tuple[Scaling, ...] = ("strong", "weak")


@dataclass(frozen=True)
class Point:
    """The fastest plan of one setting; the columns of the stored table."""

    scaling: Scaling
    model: str
    method: str
    length: int
    gpu: str
    gpus: int
    layout: str
    """Empty where nothing fits."""
    gigabytes: float
    """Of a GPU's memory, at the most; where nothing fits, the least that would be needed; 0 where the rows cannot be
    shared among so many GPUs in any way."""
    step_seconds: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    mfu: float
    waiting: float
    """Share of the step in which GPUs wait for each other."""


def jobs(scaling: Scaling, gpus: Iterable[int] = GPU_COUNTS) -> Iterator[tuple[str, str, Job]]:
    """(model, method, job) of every setting, TAPE with the fused kernels of its fallback path."""
    counts = list(gpus)
    for name in MODELS:
        model = shape.sizes(shape.published(name, position_encoding="tape"))
        for method, trained in METHODS.items():
            for length in LENGTHS:
                for gpu in GPU_NAMES:
                    for count in counts:
                        tokens = STRONG_TOKENS if scaling == "strong" else WEAK_TOKENS * count
                        yield name, method, _job(model, trained, length, gpu, count, max(1, tokens // length))


def _job(model: shape.Sizes, trained: Trained, length: int, gpu: str, gpus: int, rows: int) -> Job:
    layout = Layout(gpus=gpus)
    return Job(model=model, trained=trained, length=length, global_batch=rows, layout=layout, gpu=find(gpu))


def point(scaling: Scaling, name: str, method: str, job: Job) -> Point:
    """The fastest way of one setting."""
    best = next(iter(search.search(job)), None)
    assert job.gpu is not None
    told: dict[str, Any] = {"layout": "", "step": 0.0, "speed": 0.0, "mfu": 0.0, "waiting": 0.0}
    if best is not None and best.clock is not None:
        found = best.clock
        told = {
            "layout": best.layout.name(),
            "step": found.step,
            "speed": found.tokens_per_second,
            "mfu": found.mfu,
            "waiting": found.waiting / found.step,
        }
    return Point(
        scaling=scaling,
        model=name,
        method=method,
        length=job.length,
        gpu=job.gpu.name,
        gpus=job.layout.gpus,
        layout=told["layout"],
        gigabytes=0.0 if best is None else round(best.memory.peak.total / 1e9, 1),
        step_seconds=round(told["step"], 3),
        tokens_per_second=round(told["speed"]),
        tokens_per_second_per_gpu=round(told["speed"] / job.layout.gpus),
        mfu=round(told["mfu"], 3),
        waiting=round(told["waiting"], 3),
    )


@dataclass(frozen=True)
class Lever:
    """What one choice does to a job; the columns of the stored table."""

    lever: str
    gigabytes: float
    saved_gigabytes: float
    step_seconds: float
    slower: float
    """Share of the step without it."""
    sent_gigabytes: float
    """By a GPU in a step, to other GPUs."""


def levers(job: Job) -> list[Lever]:
    """Each lever pulled alone, beside the job without any."""
    layout = job.layout
    pulled: dict[str, dict[str, Any]] = {
        "checkpointing, every layer": {"checkpoint_layers": 1},
        "checkpointing, every second layer": {"checkpoint_layers": 2},
        "checkpointing, selective": {"checkpoint_layers": "selective"},
        "checkpointing, selective_matmuls": {"checkpoint_layers": "selective_matmuls"},
        "checkpointing and checkpoint offload": {"checkpoint_layers": 1, "offload_checkpoints": True},
        "checkpointing and feed-forward in 8 tiles": {"checkpoint_layers": 1, "mlp_tiles": 8},
        "ZeRO-2": {"zero": 2},
        "ZeRO-3": {"zero": 3},
        "optimizer offload": {"zero": 2, "offload_optimizer": "cpu"},
        "ZeRO-3, all offloaded": {"zero": 3, "offload_optimizer": "cpu", "offload_weights": "cpu"},
        "sequence parallelism 2": {"sequence": 2},
        "sequence parallelism 8": {"sequence": 8},
        "tensor parallelism 2": {"tensor": 2},
        "tensor parallelism 8": {"tensor": 8},
    }
    found = [_lever(job, job, "none of these")]
    return found + [_lever(job, replace(job, layout=replace(layout, **each)), name) for name, each in pulled.items()]


def _lever(before: Job, after: Job, name: str) -> Lever:
    sizes = [memory.estimate(each).peak.total / 1e9 for each in (before, after)]
    steps = [clock.of(each).step for each in (before, after)]
    sent = sum(each.bytes for each in traffic.of(after) if each.link != "host")
    return Lever(
        lever=name,
        gigabytes=round(sizes[1], 1),
        saved_gigabytes=round(sizes[0] - sizes[1], 1),
        step_seconds=round(steps[1], 3),
        slower=round(steps[1] / steps[0] - 1, 3),
        sent_gigabytes=round(sent / 1e9, 1),
    )


def as_rows(found: Iterable[Point | Lever]) -> list[dict[str, Any]]:
    """Plain rows, for CSV and JSON."""
    return [asdict(each) for each in found]
