"""Launches of our attention's kernels, one kernel at a time, to fill their static tables.

Each replaces the table's entry of one kernel and leaves the others as they are; ``attend triton`` is the tables as they
are. Times are of the whole forward and the whole backward, so that differences are those of the kernel.

Only those are tried that the compile gate passes for sm_90: ``python -m tools.compile_kernels --kernels
benchmarks.launches --capability 90`` compiles all of :func:`plausible`.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch

from benchmarks.attention import TOGETHER, Implementation, between
from benchmarks.benchmark_case import BenchmarkCase, Setting
from benchmarks.calls import attend, documents_of
from benchmarks.shapes import Sweep
from tape_ds.kernels import tape_attention_backward, tape_attention_forward
from tape_ds.kernels.launch import AUTOTUNE, INTERPRETER, SHARED_MEMORY, Launch, capability, padded
from tape_ds.kernels.tape_attention import document_borders, tape_attention
from tools.compile_gate.calls import LLAMA_7B, WHOLE, attention, differentiate, documents


class Kernel(NamedTuple):
    module: ModuleType
    plain: str
    """Name of its table."""
    documents: str
    """The same where sequences are packed."""
    kept: int
    """Tensors of which a program keeps a block of rows in shared memory."""

    def launched(self, key: tuple[int, int], packed: bool, launch: Launch) -> AbstractContextManager[Any]:
        return mock.patch.dict(getattr(self.module, self.documents if packed else self.plain), {key: (launch,)})


KERNELS = {
    "forward": Kernel(tape_attention_forward, "FORWARD", "FORWARD", 1),
    "dV": Kernel(tape_attention_backward, "VALUES", "VALUES_DOCUMENTS", 1),
    "dK dQ": Kernel(tape_attention_backward, "KEYS_AND_QUERIES", "KEYS_AND_QUERIES_DOCUMENTS", 3),
}


def plausible(kernel: Kernel) -> Iterator[Launch]:
    """Yield blocks whose 16-bit tiles of 128 columns fit into sm_90's shared memory; three tensors are staged."""
    for launch in itertools.starmap(Launch, itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3))):
        if 256 * (kernel.kept * launch.rows + launch.stages * 3 * launch.columns) <= SHARED_MEMORY[90]:
            yield launch


def calls(dtype: torch.dtype, sound: bool = False) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield, for the compile gate, every plausible launch at 7B's shape, or the sound ones."""

    def call(kernel: Kernel, packed: bool, launch: Launch) -> None:
        with kernel.launched((90, 128), packed, launch), mock.patch.dict(os.environ, {AUTOTUNE: "0"}):
            borders = document_borders(documents(WHOLE)) if packed else None
            differentiate(tape_attention, *attention(LLAMA_7B, dtype, WHOLE, WHOLE), document_ids=borders)

    for name, kernel in KERNELS.items():
        for packed in (False, True):
            for launch in SOUND[name, packed] if sound else plausible(kernel):
                yield f"{name}{', packed' * packed}", functools.partial(call, kernel, packed, launch)


# By kernel, and whether sequences are packed: rows x columns x warps x stages
_SOUND = {
    ("forward", False): (
        "64x32x4x2 64x32x4x3 64x32x8x2 64x32x8x3 64x64x4x2 64x64x4x3 64x64x8x2 64x64x8x3 "
        "64x128x8x2 128x32x8x2 128x32x8x3 128x64x8x2 128x64x8x3"
    ),
    ("forward", True): (
        "64x32x4x2 64x32x4x3 64x32x8x2 64x32x8x3 64x64x8x2 64x64x8x3 128x32x8x2 128x32x8x3 128x64x8x2 128x64x8x3"
    ),
    ("dV", False): (
        "128x64x8x2 64x32x4x2 64x32x4x3 64x32x8x2 64x32x8x3 64x64x8x2 64x64x8x3 128x32x8x2 128x32x8x3 128x64x8x3"
    ),
    ("dV", True): "128x32x8x2 64x32x4x2 64x32x4x3 64x32x8x2 64x32x8x3 64x64x8x2 64x64x8x3 128x32x8x3",
    ("dK dQ", False): "128x64x8x2 64x32x8x2 64x32x8x3 64x64x8x2 64x64x8x3 128x32x8x2 128x32x8x3",
    ("dK dQ", True): "64x64x8x2 64x32x4x2 64x32x4x3 64x64x8x3 128x64x8x2",
}
SOUND = {key: [Launch(*map(int, each.split("x"))) for each in text.split()] for key, text in _SOUND.items()}
INTERPRETED = 2  # launches that Triton's interpreter tries, at seconds each


def case(shape: Sweep, setting: Setting) -> BenchmarkCase:
    return between(implementations(shape, setting.device), shape.attention, setting)


def implementations(shape: Sweep, device: torch.device) -> Iterator[Implementation]:
    """Yield the unchanged tables, and ``ours, 128x64, 8 warps, 2 stages`` for every launch."""
    documents = documents_of(shape.attention, device)
    make = functools.partial(attend, "triton", documents)
    yield Implementation("tape", "attend triton", TOGETHER, make)
    kernel, packed = KERNELS[shape.kernel], documents is not None
    key = (capability(device), padded(shape.attention.width))
    for launch in SOUND[shape.kernel, packed][: INTERPRETED if key[0] == INTERPRETER else None]:
        name = f"ours, {launch.rows}x{launch.columns}, {launch.warps} warps, {launch.stages} stages"
        yield Implementation("tape", name, TOGETHER, make, functools.partial(kernel.launched, key, packed, launch))
