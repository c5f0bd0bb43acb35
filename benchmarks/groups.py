"""The groups of benchmarks: what each times, at which shapes, how often."""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.benchmark_case import BenchmarkCase, Setting
from benchmarks.shapes import AttentionShape, BenchmarkModel, Decode, Mix, Sweep


class Group(NamedTuple):
    """One group; of its shapes the most valuable come first: a run that is cut short keeps what it has done."""

    about: str
    module: str
    """Of the benchmarks; imported when asked for: what it needs (DeepSpeed's offload, say) may be missing on a machine
    that runs the others."""
    cuda: Sequence[Any]
    """Shapes on a GPU."""
    cpu: Sequence[Any] = ()
    """Shapes on a CPU; none where the group makes no sense there."""
    single: bool = False
    """Whether an operation is timed by itself, see :mod:`benchmarks.measure`, rather than a model as it runs."""
    repeats: int | None = None
    """Samples of each implementation; None: as many as :data:`REPEATS` says."""

    def shapes(self, device: str) -> Sequence[Any]:
        """By kind of device, "cpu" or "cuda"."""
        return self.cpu if device == "cpu" else self.cuda

    def samples(self, device: str) -> int:
        """Of each implementation."""
        return self.repeats or REPEATS[device, self.single]

    def case(self, shape: Any, setting: Setting) -> BenchmarkCase:
        """Return the implementations at one of the shapes."""
        found: BenchmarkCase = importlib.import_module(f"benchmarks.{self.module}").case(shape, setting)
        return found


REPEATS = {("cuda", True): 50, ("cuda", False): 20, ("cpu", True): 11, ("cpu", False): 5}
"""Samples, by kind of device, of a single operation or not."""
GROUPS = {
    "attention": Group(
        "causal attention, forward and backward, by every library",
        "attention",
        cuda=[
            AttentionShape(1, 32, 32, 8192, 128),
            AttentionShape(4, 32, 32, 8192, 64),
            AttentionShape(8, 12, 12, 1024, 64),
            AttentionShape(1, 32, 8, 8192, 128),
        ],
        cpu=[
            AttentionShape(1, 12, 12, 1024, 64),
            AttentionShape(1, 12, 12, 2048, 64),
            AttentionShape(1, 9, 3, 2048, 64),
        ],
        single=True,
    ),
    "packed": Group(
        "the same over documents packed into sequences",
        "attention",
        cuda=[
            *(AttentionShape(1, 32, 32, 8192, 128, documents) for documents in (16, 1, 64)),
            AttentionShape(1, 32, 8, 8192, 128, 16),
            AttentionShape(4, 32, 32, 8192, 64, 16),
        ],
        cpu=[AttentionShape(1, 12, 12, 2048, 64, documents) for documents in (1, 16)],
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
    "layer": Group(
        "one decoder layer, forward and backward",
        "layer",
        cuda=[BenchmarkModel("7B", 1, 1, 8192), BenchmarkModel("7B", 1, 1, 8192, 16), BenchmarkModel("7B", 1, 1, 4096)],
        cpu=[BenchmarkModel("155M", 1, 1, 2048)],
    ),
    "step": Group(
        "a whole model's forward, loss and backward",
        "step",
        cuda=[BenchmarkModel("155M", 12, 8, 1024)],
        cpu=[
            BenchmarkModel("155M", 6, 1, 1024),
            BenchmarkModel("155M", 6, 1, 1024, 16),
            BenchmarkModel("155M", 6, 1, 2048),
        ],
    ),
    "generate": Group(
        "a whole model's next token over a full cache, forward",
        "generate",
        cuda=[BenchmarkModel("7B", 32, 1, 8192), BenchmarkModel("155M", 12, 1, 8192)],
        cpu=[BenchmarkModel("155M", 6, 1, 8192)],
    ),
    "recipe": Group(
        "7B, frozen but for position updates and norms, full recompute: whole training steps",
        "recipe",
        cuda=[
            *(BenchmarkModel("7B", 32, 1, 8192, documents) for documents in (None, 16)),
            *(BenchmarkModel("7B", 32, 1, tokens) for tokens in (32768, 4096, 16384, 65536)),
        ],
        repeats=3,
    ),
    "formulation": Group(
        "ours against a transcription of the published formulation, whole models",
        "formulation",
        cuda=[BenchmarkModel("155M", 6, 1, 2048)],
        cpu=[BenchmarkModel("155M", 6, 1, 2048)],
    ),
    "table4": Group(  # of one layer, and of a whole model
        "an inference step of a layer and of a model by every encoding of the paper's Table 4, and ALiBi",
        "table4",
        cuda=[
            BenchmarkModel("155M", 1, 1, 1024),
            BenchmarkModel("155M", 1, 8, 1024),
            BenchmarkModel("155M", 12, 1, 1024),
        ],
        cpu=[BenchmarkModel("155M", 1, 1, 1024), BenchmarkModel("155M", 6, 1, 1024)],
    ),
    "encodings": Group(
        "a whole model's forward, loss and backward by every encoding",
        "encodings",
        cuda=[BenchmarkModel("155M", 12, 8, 1024)],
        cpu=[BenchmarkModel("155M", 6, 1, 1024)],
    ),
    "memory_savings": Group(
        "what each memory saving saves and costs, a whole model's step",
        "memory_savings",
        cuda=[BenchmarkModel("7B", 8, 1, 8_192), BenchmarkModel("7B", 8, 1, 32_768)],
        # Blocks and logits apart: blocks so large that they count beside a chunk of logits would take an hour.
        cpu=[BenchmarkModel("deep", 16, 1, 2_048), BenchmarkModel("155M", 1, 1, 4_096)],
    ),
}
