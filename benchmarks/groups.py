"""The groups of benchmarks: what each times, at which shapes, how often.

A group's implementations are imported when they are asked for: what one of them needs (DeepSpeed's offload, say) may
be missing on a machine that runs the others.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import shapes
from benchmarks.benchmark_case import BenchmarkCase, Setting


class Group(NamedTuple):
    """One group."""

    about: str
    shapes: Mapping[str, Sequence[Any]]
    """By kind of device, "cpu" or "cuda"; empty where the group makes no sense."""
    case: Callable[[Any, Setting], BenchmarkCase]
    """The implementations at one of the shapes."""
    repeats: Mapping[str, int]
    """Samples of each implementation, by kind of device."""
    single: bool
    """Whether an operation is timed by itself, see :mod:`benchmarks.measure`, rather than a model as it runs."""
    warm_up: Mapping[str, int]
    """Runs before the first sample, besides the one that memory is taken from."""


def _operation(about: str, listed: Mapping[str, Sequence[Any]], module: str, cuda: int, cpu: int) -> Group:
    return Group(about, listed, _case(module), {"cuda": cuda, "cpu": cpu}, True, {"cuda": 3, "cpu": 1})


def _model(
    about: str, listed: Mapping[str, Sequence[Any]], module: str, cuda: int, cpu: int, warm_up: tuple[int, int] = (2, 0)
) -> Group:
    warm = dict(zip(("cuda", "cpu"), warm_up, strict=True))
    return Group(about, listed, _case(module), {"cuda": cuda, "cpu": cpu}, False, warm)


def _case(module: str) -> Callable[[Any, Setting], BenchmarkCase]:
    """What ``benchmarks.MODULE.case`` gives."""

    def case(shape: Any, setting: Setting) -> BenchmarkCase:
        return importlib.import_module(f"benchmarks.{module}").case(shape, setting)

    return case


GROUPS = {
    "attention": _operation(
        "causal attention, forward and backward, by every library", shapes.ATTENTION, "attention", 30, 7
    ),
    "packed": _operation("the same over documents packed into rows", shapes.PACKED, "attention", 30, 7),
    "launches": _operation(
        "our attention's kernels, one after another with every plausible launch", shapes.LAUNCHES, "launches", 10, 1
    ),
    "decode": _operation("one token over a long cache, forward", shapes.DECODE, "decode", 100, 30),
    "position_mix": _operation(
        "the update of the position state, forward and backward", shapes.POSITION_MIX, "position_mix", 50, 11
    ),
    "rotate": _operation("the rotation of queries, forward and backward", shapes.ROTATE, "rotate", 50, 11),
    "layer": _model("one decoder layer, forward and backward", shapes.LAYER, "layer", 20, 7),
    "step": _model("a whole model's forward, loss and backward", shapes.STEP, "step", 20, 7),
    "generate": _model(
        "a whole model's next token over a full cache, forward", shapes.GENERATE, "generate", 50, 21, (3, 1)
    ),
    "recipe": _model(
        "7B, frozen but for position updates and norms, full recompute: whole training steps",
        shapes.RECIPE,
        "recipe",
        3,
        3,
        (0, 0),
    ),
    "formulation": _model(
        "ours against a transcription of the published formulation, whole models",
        shapes.FORMULATION,
        "formulation",
        20,
        3,
    ),
    "table4": _model(
        "an inference step of a layer and of a model by every encoding of the paper's Table 4, and ALiBi",
        shapes.TABLE_4,
        "table4",
        10,
        7,
    ),
    "memory_savings": _model(
        "what each memory saving saves and costs, a whole model's step", shapes.SAVINGS, "memory_savings", 10, 5
    ),
}
