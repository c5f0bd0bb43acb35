"""Every plausible launch of our attention's kernels, one kernel at a time: what their static tables should hold.

Each replaces the table's entry of one kernel and leaves the others as they are; ``ours`` is the tables as they are.
Times are of the whole forward and the whole backward, so that differences are those of the kernel.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch

from benchmarks import attention, calls
from benchmarks.benchmark_case import BenchmarkCase, Setting
from benchmarks.shapes import Sweep
from tape_ds.kernels import tape_attention_backward, tape_attention_forward
from tape_ds.kernels.launch import INTERPRETER, SHARED_MEMORY, Launch, Table, capability, padded


class Kernel(NamedTuple):
    """One that is swept."""

    plain: Table
    documents: Table
    """Its launches where sequences are packed."""
    kept: int
    """Tensors of which a program keeps a block of rows in shared memory."""
    staged: int
    """Tensors that it walks over, K columns each."""


KERNELS = {
    "forward": Kernel(tape_attention_forward.FORWARD, tape_attention_forward.FORWARD, 1, 3),
    "dV": Kernel(tape_attention_backward.VALUES, tape_attention_backward.VALUES_DOCUMENTS, 1, 3),
    "dK dQ": Kernel(tape_attention_backward.KEYS_AND_QUERIES, tape_attention_backward.KEYS_AND_QUERIES_DOCUMENTS, 3, 3),
}
INTERPRETED = 2
"""So many are tried by Triton's interpreter, which takes seconds for each."""
ROWS, COLUMNS, WARPS, STAGES = (64, 128), (32, 64, 128), (4, 8), (2, 3)


def case(shape: Sweep, setting: Setting) -> BenchmarkCase:
    """Return all launches of the shape's kernel; each is held to fp64 like any other implementation."""
    return attention.between(implementations(shape, setting.device), shape.attention, setting)


def implementations(shape: Sweep, device: torch.device) -> Iterator[attention.Implementation]:
    """``ours``, and ``ours, 128x64, 8 warps, 2 stages`` for every launch."""
    documents = calls.documents_of(shape.attention, device)
    make = functools.partial(calls.ours, documents, False)
    yield attention.Implementation("tape", "ours", attention.TOGETHER, make)
    kernel, key = KERNELS[shape.kernel], (capability(device), padded(shape.attention.width))
    table: Any = kernel.plain if documents is None else kernel.documents
    found = list(plausible(kernel, *key))
    for launch in found[:INTERPRETED] if key[0] == INTERPRETER else found:
        name = f"ours, {launch.rows}x{launch.columns}, {launch.warps} warps, {launch.stages} stages"
        around = functools.partial(mock.patch.dict, table, {key: (launch,)})
        yield attention.Implementation("tape", name, attention.TOGETHER, make, around)


def plausible(kernel: Kernel, chip: int, width: int) -> Iterator[Launch]:
    """Blocks whose 16-bit tiles fit into the chip's shared memory; the compiler has the last word."""
    room = SHARED_MEMORY.get(chip, max(SHARED_MEMORY.values()))
    for launch in itertools.starmap(Launch, itertools.product(ROWS, COLUMNS, WARPS, STAGES)):
        if 2 * width * (kernel.kept * launch.rows + launch.stages * kernel.staged * launch.columns) <= room:
            yield launch
