"""The groups of benchmarks: what each times, at which shapes, how often."""

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.benchmark_case import BenchmarkCase, Setting
from benchmarks.shapes import AttentionShape, BenchmarkModel, Decode, Mix, Shape, Sweep


class Group(NamedTuple):
    """One group; its most valuable shapes come first, since a run may be cut short."""

    about: str
    module: str
    cuda: Sequence[Any]
    cpu: Sequence[Any] = ()
    """Shapes on a CPU; none where the group makes no sense there."""
    single: bool = False
    """Whether an operation is timed by itself, see :mod:`benchmarks.measure`, rather than a model as it runs."""
    repeats: int | None = None
    """Samples of each implementation; None: as many as :data:`REPEATS` has."""

    def shapes(self, device: str) -> Sequence[Any]:
        return self.cpu if device == "cpu" else self.cuda

    def samples(self, device: str) -> int:
        return self.repeats or REPEATS[device, self.single]

    def case(self, shape: Any, setting: Setting) -> BenchmarkCase:
        found: BenchmarkCase = importlib.import_module(f"benchmarks.{self.module}").case(shape, setting)
        return found


# Samples, by kind of device, of a single operation or not
REPEATS = {("cuda", True): 50, ("cuda", False): 20, ("cpu", True): 11, ("cpu", False): 5}
GROUPS = {
    "smoke": Group(
        "two layers of 7B's width: loss, every gradient, a step of AdamW and a decode, against a wider precision",
        "smoke",
        cuda=[BenchmarkModel("7B", 2, 1, 1024, documents) for documents in (5, None)],
        repeats=1,
    ),
    "attention": Group(
        "causal attention, forward and backward, by every library; of one text, and of packed documents",
        "attention",
        cuda=[
            *(AttentionShape(1, 32, 32, 8192, 128, documents) for documents in (16, None)),
            *(AttentionShape(1, 32, 8, 8192, 128, documents) for documents in (16, None)),
            *(AttentionShape(4, 32, 32, 8192, 64, documents) for documents in (16, None)),
            AttentionShape(8, 12, 12, 1024, 64),
        ],
        cpu=[
            *(AttentionShape(1, 12, 12, 2048, 64, documents) for documents in (None, 16)),
            AttentionShape(1, 9, 3, 2048, 64),
        ],
        single=True,
    ),
    "launches": Group(
        "our attention's kernels, one after another with every plausible launch",
        "launches",
        cuda=[
            Sweep(kernel, AttentionShape(1, 32, 32, 8192, 128, documents))
            for documents in (None, 16)
            for kernel in ("forward", "dK dQ", "dV")
        ],
        single=True,
        repeats=10,
    ),
    "decode": Group(
        "one token over a long cache, forward",
        "decode",
        cuda=[Decode(1, 32, 32, 8192, 128), Decode(1, 32, 8, 8192, 128), Decode(1, 9, 3, 8192, 64)],
        cpu=[Decode(1, 32, 32, 8192, 128), Decode(1, 12, 12, 8192, 64), Decode(1, 9, 3, 8192, 64)],
        single=True,
    ),
    "position_mix": Group(
        "the update of the position state, forward and backward",
        "position_mix",
        cuda=[Mix(1, 32, 32, 128, 8192, 128), Mix(8, 12, 12, 48, 1024, 64), Mix(1, 32, 8, 32, 8192, 128)],
        cpu=[Mix(1, 12, 12, 48, 2048, 64), Mix(1, 9, 3, 12, 2048, 64)],
        single=True,
    ),
    "rotate": Group(
        "the rotation of queries, forward and backward",
        "rotate",
        cuda=[
            AttentionShape(1, 32, 32, 8192, 128),
            AttentionShape(8, 12, 12, 1024, 64),
            AttentionShape(1, 32, 8, 8192, 128),
        ],
        cpu=[AttentionShape(1, 12, 12, 2048, 64), AttentionShape(1, 9, 3, 2048, 64)],
        single=True,
    ),
    "recipe": Group(
        "7B, frozen but for position updates and norms: whole training steps",
        "recipe",
        cuda=[BenchmarkModel("7B", 32, 1, 8192, documents) for documents in (16, 1)],
        repeats=3,
    ),
    "encodings": Group(
        "a whole model's forward, loss and backward by every encoding",
        "encodings",
        cuda=[BenchmarkModel("155M", 2, 8, 1024)],
        cpu=[BenchmarkModel("155M", 6, 1, 1024)],
    ),
}


def _toys(model: BenchmarkModel, width: int, cache: int) -> dict[str, list[Shape]]:
    """Return the toy shapes of every group, with heads of this width."""
    packed, attention = replace(model, documents=3), AttentionShape(model.batch, 4, 2, model.tokens, width)
    return {
        "smoke": [replace(each, layers=2, tokens=24) for each in (packed, model)],
        "attention": [replace(attention, documents=3), attention],
        "launches": [Sweep("forward", replace(attention, heads=1, groups=1))],
        "decode": [Decode(model.batch, 4, 2, cache, width)],
        "position_mix": [Mix(model.batch, 4, 2, max(5, width // 4), model.tokens, width)],
        "rotate": [attention],
        "recipe": [packed],
        "encodings": [model],
    }


# For ``--toys``, by kind of device: everything runs, and its times mean nothing. CUDA's are what its kernels take.
TOYS = {
    "cpu": _toys(BenchmarkModel("tiny", 3, 1, 40), 8, 50),
    "cuda": _toys(BenchmarkModel("small", 3, 2, 256), 64, 1_000),
}


def toys() -> dict[str, Group]:
    return {name: group._replace(cuda=TOYS["cuda"][name], cpu=TOYS["cpu"][name]) for name, group in GROUPS.items()}
