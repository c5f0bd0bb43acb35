"""Launches of our attention's kernels, one kernel at a time, to fill their static tables.

Each replaces the table's entry of one kernel and leaves the others as they are; ``attend triton`` is the tables as they
are. Times are of the whole forward and the whole backward, so that differences are those of the kernel.

Only launches are tried that passed the compile gate for sm_90; it compiles them again once they are in a table.
"""

import functools
from unittest import mock

from benchmarks import attention
from benchmarks.attention import Implementation, attend, lengths_of
from benchmarks.benchmark_case import BenchmarkCase, Setting
from benchmarks.shapes import Shape
from tape_ds.kernels import tape_attention_backward, tape_attention_forward
from tape_ds.kernels.launch import INTERPRETER, Launch, capability, padded

# By kernel, and whether sequences are packed: its table, and launches (rows x columns x warps x stages)
SWEPT = {
    ("forward", False): (
        tape_attention_forward.FORWARD,
        "64x32x4x2 64x32x4x3 64x32x8x2 64x32x8x3 64x64x4x2 64x64x4x3 64x64x8x2 64x64x8x3 "
        "64x128x8x2 128x32x8x2 128x32x8x3 128x64x8x2 128x64x8x3",
    ),
    ("forward", True): (
        tape_attention_forward.FORWARD,
        "64x32x4x2 64x32x4x3 64x32x8x2 64x32x8x3 64x64x8x2 64x64x8x3 128x32x8x2 128x32x8x3 128x64x8x2 128x64x8x3",
    ),
    ("dV", False): (
        tape_attention_backward.VALUES,
        "128x64x8x2 64x32x4x2 64x32x4x3 64x32x8x2 64x32x8x3 64x64x8x2 64x64x8x3 128x32x8x2 128x32x8x3 128x64x8x3",
    ),
    ("dV", True): (
        tape_attention_backward.VALUES_DOCUMENTS,
        "128x32x8x2 64x32x4x2 64x32x4x3 64x32x8x2 64x32x8x3 64x64x8x2 64x64x8x3 128x32x8x3",
    ),
    ("dK dQ", False): (
        tape_attention_backward.KEYS_AND_QUERIES,
        "128x64x8x2 64x32x8x2 64x32x8x3 64x64x8x2 64x64x8x3 128x32x8x2 128x32x8x3",
    ),
    ("dK dQ", True): (
        tape_attention_backward.KEYS_AND_QUERIES_DOCUMENTS,
        "64x64x8x2 64x32x4x2 64x32x4x3 64x64x8x3 128x64x8x2",
    ),
}
# launches that Triton's interpreter tries, at seconds each
INTERPRETED = 2


def case(shape: Shape, setting: Setting) -> BenchmarkCase:
    """Compare the unchanged tables, and ``ours, 128x64, 8 warps, 2 stages`` for every launch."""
    lengths = lengths_of(shape)
    make = functools.partial(attend, "triton", lengths)
    table, sound = SWEPT[shape.name, lengths is not None]
    key = (capability(setting.device), padded(shape.width))
    launches = [Launch(*map(int, launch.split("x"))) for launch in sound.split()]
    compared = [Implementation("tape", "attend triton", make)]
    for launch in launches[: INTERPRETED if key[0] == INTERPRETER else None]:
        name = f"ours, {launch.rows}x{launch.columns}, {launch.warps} warps, {launch.stages} stages"
        in_table = functools.partial(mock.patch.dict, table, {key: (launch,)})
        compared.append(Implementation("tape", name, make, around=in_table))
    return attention.case(shape, setting, compared)
