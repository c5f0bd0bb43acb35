"""The update of the position state: written down as the paper does, compiled, and ours.

``d' = d + u + W_down diag(SiLU(g)) W_up (start + d + u)`` with ``u = W_att A e``.

Shape letters: B batch, T tokens, H query heads, G key/value heads, I position rank, K head size.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.contest import Contest, Entry, Setting, Truth, expected_from
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import Mix
from tape_ds.kernels.position_mix import position_mix

NAMES = ("state", "moved", "attend", "gate", "expand", "contract")
"""What a gradient is asked for."""


def straightforward(
    start: Tensor, state: Tensor, moved: Tensor, attend: Tensor, gate: Tensor, expand: Tensor, contract: Tensor
) -> Tensor:
    """In the tensors' own precision, with the [B, I, T, K] tensors that the formula names."""
    update_BGTK = torch.einsum("gh,bhtk->bgtk", attend, moved)
    up_BITK = torch.einsum("ig,bgtk->bitk", expand, start.to(state.dtype) + state + update_BGTK)
    gated_BITK = F.silu(gate).transpose(1, 2)[..., None] * up_BITK
    return state + update_BGTK + torch.einsum("gi,bitk->bgtk", contract, gated_BITK)


def contest(shape: Mix, setting: Setting) -> Contest:
    """The three of them at one shape."""
    start, leaves, returned = draw(shape, setting)
    ours = functools.partial(position_mix, dtype=setting.dtype)
    makers: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours,
        "eager": lambda: straightforward,
        "compiled": lambda: torch.compile(straightforward, dynamic=False),
    }
    entries = [
        Entry(name, "tape", functools.partial(_runner, make, start, leaves, returned)) for name, make in makers.items()
    ]
    return Contest(entries, {"tape": functools.partial(_truth, start, leaves, returned)})


def draw(shape: Mix, setting: Setting) -> tuple[Tensor, list[Tensor], Tensor]:
    """The start, what gradients are asked for (see NAMES), and what comes back."""
    generator = torch.Generator(setting.device).manual_seed(0)

    def normal(*size: int, std: float = 1.0) -> Tensor:
        drawn = std * torch.randn(size, generator=generator, device=setting.device)
        return drawn.to(setting.dtype)

    batch, heads, groups, rank, tokens, width = shape
    angles = torch.rand(1, 1, tokens, width // 2, generator=generator, device=setting.device)
    start = torch.cat((angles.cos(), angles.sin()), dim=-1)
    leaves = [
        normal(batch, tokens, groups, width, std=0.1).transpose(1, 2),
        normal(batch, tokens, heads, 2 * width).transpose(1, 2)[..., width:],  # the end of attention's output
        normal(groups, heads, std=0.1),
        normal(batch, tokens, rank),
        normal(rank, groups, std=0.1),
        normal(groups, rank, std=0.1),
    ]
    leaves = [x.detach().requires_grad_() for x in leaves]
    return start, leaves, normal(batch, tokens, groups, width).transpose(1, 2)


def _runner(make: Callable[[], Any], start: Tensor, leaves: list[Tensor], returned: Tensor) -> Runner:
    call = make()

    def forward() -> Tensor:
        return call(start, *leaves)

    def backward(out: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, leaves, returned)

    def outcome() -> dict[str, Tensor]:
        out = forward()
        return {"out": out.detach(), **_named(backward(out))}

    return Runner(forward, backward, outcome, bytes_of((start, *leaves)))


def _named(gradients: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {f"d_{name}": gradient for name, gradient in zip(NAMES, gradients, strict=True)}


def _truth(start: Tensor, leaves: list[Tensor], returned: Tensor) -> Truth:
    both = []
    for dtype in (torch.float64, returned.dtype):
        own = [x.detach().to(dtype).requires_grad_() for x in leaves]
        out = straightforward(start.to(dtype), *own)
        both.append({"out": out.detach(), **_named(torch.autograd.grad(out, own, returned.to(dtype)))})
    exact, plain = both
    return expected_from(exact, plain, returned.dtype)
