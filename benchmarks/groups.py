"""The groups of benchmarks: what each times, at which shapes, how often."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import (
    attention,
    decode,
    formulation,
    generate,
    layer,
    levers,
    position_mix,
    recipe,
    rotate,
    shapes,
    step,
    table4,
)
from benchmarks.contest import Contest, Setting


class Group(NamedTuple):
    """One group."""

    about: str
    shapes: Mapping[str, Sequence[Any]]
    """By kind of device, "cpu" or "cuda"; empty where the group makes no sense."""
    contest: Callable[[Any, Setting], Contest]
    """The rivals at one of the shapes."""
    repeats: Mapping[str, int]
    """Samples of each rival, by kind of device."""
    single: bool
    """Whether an operation is timed by itself, see :mod:`benchmarks.measure`, rather than a model as it runs."""
    warm_up: Mapping[str, int]
    """Runs before the first sample, besides the one that memory is taken from."""


_OPERATION = {"cuda": 3, "cpu": 1}
_MODEL = {"cuda": 2, "cpu": 0}
GROUPS = {
    "attention": Group(
        "causal attention, forward and backward, by every library",
        shapes.ATTENTION,
        attention.contest,
        {"cuda": 30, "cpu": 7},
        True,
        _OPERATION,
    ),
    "decode": Group(
        "one token over a long cache, forward",
        shapes.DECODE,
        decode.contest,
        {"cuda": 100, "cpu": 30},
        True,
        _OPERATION,
    ),
    "position_mix": Group(
        "the update of the position state, forward and backward",
        shapes.POSITION_MIX,
        position_mix.contest,
        {"cuda": 50, "cpu": 11},
        True,
        _OPERATION,
    ),
    "rotate": Group(
        "the rotation of queries, forward and backward",
        shapes.ROTATE,
        rotate.contest,
        {"cuda": 50, "cpu": 11},
        True,
        _OPERATION,
    ),
    "layer": Group(
        "one decoder layer, forward and backward", shapes.LAYER, layer.contest, {"cuda": 20, "cpu": 7}, False, _MODEL
    ),
    "step": Group(
        "a whole model's forward, loss and backward", shapes.STEP, step.contest, {"cuda": 20, "cpu": 7}, False, _MODEL
    ),
    "generate": Group(
        "a whole model's next token over a full cache, forward",
        shapes.GENERATE,
        generate.contest,
        {"cuda": 50, "cpu": 21},
        False,
        {"cuda": 3, "cpu": 1},
    ),
    "recipe": Group(
        "7B, frozen but for position updates and norms, full recompute: training steps at growing length",
        shapes.RECIPE,
        recipe.contest,
        {"cuda": 3, "cpu": 3},
        False,
        {"cuda": 0, "cpu": 0},
    ),
    "formulation": Group(
        "ours against a transcription of the published formulation, whole models",
        shapes.FORMULATION,
        formulation.contest,
        {"cuda": 20, "cpu": 3},
        False,
        _MODEL,
    ),
    "table4": Group(
        "an inference step of a layer and of a model by every encoding of the paper's Table 4, and ALiBi",
        shapes.TABLE_4,
        table4.contest,
        {"cuda": 10, "cpu": 7},
        False,
        _MODEL,
    ),
    "levers": Group(
        "what each memory lever saves and costs, a whole model's step",
        levers.SHAPES,
        levers.contest,
        levers.REPEATS,
        False,
        _MODEL,
    ),
}
