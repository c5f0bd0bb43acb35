"""The rotation of queries: the customary ``x cos + rotate_half(x) sin``, compiled, and ours.

RoPE rotates by the start alone; TAPE by the start plus each head's deviation, which gets a gradient.

Shape letters: B batch, T tokens, H query heads, G key/value heads, K head size.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.contest import BASELINE, Contest, Entry, Setting, Truth, expected_from
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import Attention
from tape_ds.kernels.rotate import rotate


def straightforward(x_BHTK: Tensor, start_B1TK: Tensor, state_BGTK: Tensor | None = None) -> Tensor:
    """As Llama's code writes it: cosines and sines K wide each, in the precision of ``x``."""
    e_BGTK = start_B1TK if state_BGTK is None else start_B1TK + state_BGTK
    e_BGTK = e_BGTK.to(x_BHTK.dtype)
    if e_BGTK.shape[1] not in (1, x_BHTK.shape[1]):
        e_BGTK = e_BGTK.repeat_interleave(x_BHTK.shape[1] // e_BGTK.shape[1], dim=1)
    cos, sin = (torch.cat((half, half), dim=-1) for half in e_BGTK.chunk(2, dim=-1))
    real, imaginary = x_BHTK.chunk(2, dim=-1)
    return x_BHTK * cos + torch.cat((-imaginary, real), dim=-1) * sin


def contest(shape: Attention, setting: Setting) -> Contest:
    """RoPE's and TAPE's rotation in each way."""
    generator = torch.Generator(setting.device).manual_seed(0)

    def normal(heads: int, std: float = 1.0) -> Tensor:
        size = (shape.batch, shape.tokens, heads, shape.width)
        drawn = std * torch.randn(size, generator=generator, device=setting.device)
        return drawn.to(setting.dtype).transpose(1, 2)

    angles = torch.rand(1, 1, shape.tokens, shape.width // 2, generator=generator, device=setting.device)
    start = torch.cat((angles.cos(), angles.sin()), dim=-1)
    x, state, returned = normal(shape.heads), normal(shape.groups, std=0.1), normal(shape.heads)
    leaves = {BASELINE: (x.requires_grad_(),), "tape": (x, state.requires_grad_())}
    makers: dict[str, Callable[[], Any]] = {
        "ours": lambda: rotate,
        "eager": lambda: straightforward,
        "compiled": lambda: torch.compile(straightforward, dynamic=False),
    }
    entries = [
        Entry(name, encoding, functools.partial(_runner, make, start, own, returned))
        for encoding, own in leaves.items()
        for name, make in makers.items()
    ]
    return Contest(entries, {name: functools.partial(_truth, start, own, returned) for name, own in leaves.items()})


def _runner(make: Callable[[], Any], start: Tensor, leaves: tuple[Tensor, ...], returned: Tensor) -> Runner:
    call = make()
    x, *state = leaves

    def forward() -> Tensor:
        return call(x, start, *state)

    def backward(out: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, leaves, returned)

    def outcome() -> dict[str, Tensor]:
        out = forward()
        return {"out": out.detach(), **_named(backward(out))}

    return Runner(forward, backward, outcome, bytes_of((start, *leaves)))


def _named(gradients: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return dict(zip(("dx", "d_state"), gradients, strict=False))


def _truth(start: Tensor, leaves: tuple[Tensor, ...], returned: Tensor) -> Truth:
    both = []
    for dtype in (torch.float64, returned.dtype):
        own = tuple(x.detach().to(dtype).requires_grad_() for x in leaves)
        x, *state = own
        out = straightforward(x, start.to(dtype), *state)
        both.append({"out": out.detach(), **_named(torch.autograd.grad(out, own, returned.to(dtype)))})
    exact, plain = both
    return expected_from(exact, plain, returned.dtype)
