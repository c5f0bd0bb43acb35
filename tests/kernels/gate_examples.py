"""Kernels that the compile gate must pass or refuse, one for each thing it looks for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tape_ds.kernels.jit import jit, tl
from tape_ds.kernels.launch import Launch


@jit
def product(A, B, C, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """``steps`` products of two tiles, summed in registers."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    a = tl.load(A + m[:, None] * K + k[None, :])
    for step in range(steps):
        b = tl.load(B + step * K * N + k[:, None] * N + n[None, :])
        total = tl.dot(a, b, total)
    tl.store(C + m[:, None] * N + n[None, :], total)


@jit
def held(A, B, C, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Holds a tile through a loop that has no use for it, and for which registers do not suffice."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    places = m[:, None] * N + n[None, :]
    tile = tl.exp2(tl.load(C + places))
    total = tl.zeros((M, N), tl.float32)
    a = tl.load(A + m[:, None] * K + k[None, :])
    for step in range(steps):
        b = tl.load(B + step * K * N + k[:, None] * N + n[None, :])
        total = tl.dot(a, b, total)
    tl.store(C + places, total + tile)


@jit
def unknown_name(X, N: tl.constexpr):
    """Does not compile."""
    tl.store(X + tl.arange(0, N), missing)  # noqa: F821


def calls(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Any]]]:
    """One for each verdict; the name says which."""
    x = torch.empty(1 << 16, dtype=dtype, device="meta")
    single = torch.empty(1 << 16, device="meta")

    def tiles(kernel: Any, launch: Launch, *sizes: Any, steps: int = 99) -> None:
        kernel[1,](x, x, single, steps, *sizes, **launch.options)

    small = functools.partial(tiles, product, Launch(64, 64, 4, 2), 64, 64, 64)
    yield "good", small
    yield "good once more", functools.partial(small, steps=97)
    yield "one step", functools.partial(small, steps=1)
    yield "spills", functools.partial(tiles, held, Launch(128, 256, 4, 2), 128, 256, 64)
    yield "spills outside", functools.partial(tiles, held, Launch(128, 128, 4, 2), 128, 128, 64)
    yield "large", functools.partial(tiles, product, Launch(64, 256, 8, 4), 64, 256, 256)
    yield "unknown name", functools.partial(unknown_name[1,], x, 64, **Launch(64, 1, 1, 1).options)
