"""The groups of benchmarks: what each times, at which shapes, how often."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks import attention, launches, operations, whole_models
from benchmarks.benchmark_case import BenchmarkCase, Setting
from benchmarks.shapes import Shape, read_shape

# Samples, by kind of device, of a single operation or not
REPEATS = {("cuda", True): 50, ("cuda", False): 20, ("cpu", True): 11, ("cpu", False): 5}


class Group(NamedTuple):
    about: str
    case: Callable[[Shape, Setting], BenchmarkCase]
    cuda: Sequence[str]
    """Labels of shapes, the most valuable first, since a run may be cut short."""
    cpu: Sequence[str]
    toys: tuple[Sequence[str], Sequence[str]]
    """Labels for ``--toys``, on a GPU, whose kernels take fewer sizes, and on a CPU."""
    single: bool = False
    """Whether an operation is timed by itself, see :mod:`benchmarks.measure`, rather than a model as it runs."""
    repeats: int | None = None
    """Samples of each implementation; None: as many as :data:`REPEATS` has."""

    def shapes(self, device: str, toys: bool = False) -> list[Shape]:
        on_cpu = device == "cpu"
        labels = self.cpu if on_cpu else self.cuda
        if toys:
            labels = self.toys[on_cpu]
        return [read_shape(label) for label in labels]


GROUPS = {
    "smoke": Group(
        "two layers of 7B's width: loss, every gradient, a step of AdamW and a decode, against a wider precision",
        whole_models.smoke,
        cuda=["7B L2 B1 T1024 N5", "7B L2 B1 T1024"],
        cpu=[],
        toys=(["small L2 B2 T24 N3", "small L2 B2 T24"], ["tiny L2 B1 T24 N3", "tiny L2 B1 T24"]),
        repeats=1,
    ),
    "attention": Group(
        "causal attention, forward and backward, by every library; of one text, and of packed documents",
        attention.case,
        cuda=[
            *("B1 H32 G32 T8192 K128 N16", "B1 H32 G32 T8192 K128"),
            *("B1 H32 G8 T8192 K128 N16", "B1 H32 G8 T8192 K128"),
            *("B4 H32 G32 T8192 K64 N16", "B4 H32 G32 T8192 K64"),
            "B8 H12 G12 T1024 K64",
        ],
        cpu=["B1 H12 G12 T2048 K64", "B1 H12 G12 T2048 K64 N16", "B1 H9 G3 T2048 K64"],
        toys=(
            ["B2 H4 G2 T256 K64 N3", "B2 H4 G2 T256 K64"],
            ["B1 H4 G2 T40 K8 N3", "B1 H4 G2 T40 K8"],
        ),
        single=True,
    ),
    "launches": Group(
        "our attention's kernels, one after another with every plausible launch",
        launches.case,
        cuda=[
            "forward, B1 H32 G32 T8192 K128",
            "dK dQ, B1 H32 G32 T8192 K128",
            "dV, B1 H32 G32 T8192 K128",
            "forward, B1 H32 G32 T8192 K128 N16",
            "dK dQ, B1 H32 G32 T8192 K128 N16",
            "dV, B1 H32 G32 T8192 K128 N16",
        ],
        cpu=[],
        toys=(["forward, B2 H1 G1 T256 K64"], ["forward, B1 H1 G1 T40 K8"]),
        single=True,
        repeats=10,
    ),
    "decode": Group(
        "one token over a long cache, forward",
        attention.decode,
        cuda=["B1 H32 G32 T1 S8192 K128", "B1 H32 G8 T1 S8192 K128", "B1 H9 G3 T1 S8192 K64"],
        cpu=["B1 H32 G32 T1 S8192 K128", "B1 H12 G12 T1 S8192 K64", "B1 H9 G3 T1 S8192 K64"],
        toys=(["B2 H4 G2 T1 S1000 K64"], ["B1 H4 G2 T1 S50 K8"]),
        single=True,
    ),
    "position_mix": Group(
        "the update of the position state, forward and backward",
        operations.position_mix,
        cuda=["B1 H32 G32 I128 T8192 K128", "B8 H12 G12 I48 T1024 K64", "B1 H32 G8 I32 T8192 K128"],
        cpu=["B1 H12 G12 I48 T2048 K64", "B1 H9 G3 I12 T2048 K64"],
        toys=(["B2 H4 G2 I16 T256 K64"], ["B1 H4 G2 I5 T40 K8"]),
        single=True,
    ),
    "rotate": Group(
        "the rotation of queries, forward and backward",
        operations.rotate,
        cuda=["B1 H32 G32 T8192 K128", "B8 H12 G12 T1024 K64", "B1 H32 G8 T8192 K128"],
        cpu=["B1 H12 G12 T2048 K64", "B1 H9 G3 T2048 K64"],
        toys=(["B2 H4 G2 T256 K64"], ["B1 H4 G2 T40 K8"]),
        single=True,
    ),
    "recipe": Group(
        "7B, frozen but for position updates and norms: whole training steps",
        whole_models.recipe,
        cuda=["7B L32 B1 T8192 N16", "7B L32 B1 T8192 N1"],
        cpu=[],
        toys=(["small L3 B2 T256 N3"], ["tiny L3 B1 T40 N3"]),
        repeats=3,
    ),
    "encodings": Group(
        "a whole model's forward, loss and backward by every encoding",
        whole_models.every_encoding,
        cuda=["155M L2 B8 T1024"],
        cpu=["155M L6 B1 T1024"],
        toys=(["small L3 B2 T256"], ["tiny L3 B1 T40"]),
    ),
}
