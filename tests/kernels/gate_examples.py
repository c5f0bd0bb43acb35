"""Kernels that the compile gate must pass or refuse, one for each thing it looks for."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tape_ds.kernels.jit import jit, tl
from tape_ds.kernels.launch import Launch, Specimen


@jit
def product(A, B, C, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, CORES: tl.constexpr):
    """``steps`` products of two tiles, summed in registers: in fp32 throughout where tensor cores are not wanted."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    a = tl.load(A + m[:, None] * K + k[None, :])
    for step in range(steps):
        b = tl.load(B + step * K * N + k[:, None] * N + n[None, :])
        if CORES:
            total = tl.dot(a, b, total)
        else:
            total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    tl.store(C + m[:, None] * N + n[None, :], total)


@jit
def double(X, N: tl.constexpr):
    """No product at all."""
    places = tl.arange(0, N)
    tl.store(X + places, tl.load(X + places) * 2)


@jit
def unknown_name(X, N: tl.constexpr):
    """Does not compile."""
    tl.store(X + tl.arange(0, N), missing)  # noqa: F821


class Deadly:
    """A kernel that takes its compiler's process along, as an abort inside LLVM does."""

    @property
    def arg_names(self) -> list[str]:
        os._exit(139)


def specimens(capability: int, dtype: str) -> Iterator[Specimen]:
    """One for each verdict; the name says which."""

    def tiles(name: str, m: int, n: int, k: int, launch: Launch, cores: bool = True) -> Specimen:
        types = {"A": f"*{dtype}", "B": f"*{dtype}", "C": "*fp32", "steps": "i32"}
        values = {"M": m, "N": n, "K": k, "CORES": cores}
        return Specimen(name, product, types, values, ("A", "B", "C"), launch)

    single = {"X": f"*{dtype}"}, {"N": 64}, ("X",), Launch(64, 1, 1, 1)
    yield tiles("good", 64, 64, 64, Launch(64, 64, 4, 2))
    yield Specimen("deadly", Deadly(), *single)
    yield tiles("spills", 128, 256, 32, Launch(128, 256, 2, 2))
    yield tiles("large", 64, 256, 256, Launch(64, 256, 8, 4))
    yield tiles("off the cores", 16, 16, 16, Launch(16, 16, 1, 1), cores=False)
    yield Specimen("no product", double, *single, multiplies=False)
    yield Specimen("product expected", double, *single)
    yield Specimen("unknown name", unknown_name, *single)
    yield Specimen("wrong argument", double, {"Y": f"*{dtype}"}, {"N": 64}, (), Launch(64, 1, 1, 1))
