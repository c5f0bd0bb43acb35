"""The update of the position state: written down as the paper does, compiled, and ours.

``d' = d + u + W_down diag(SiLU(g)) W_up (start + d + u)`` with ``u = W_att A e``.

Shape letters: B batch, T tokens, H query heads, G key/value heads, I position rank, K head size.
"""

import functools
from dataclasses import astuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.benchmark_case import BenchmarkCase, Setting, fused_operation
from benchmarks.shapes import Mix
from tape_ds.kernels.position_mix import position_mix


def straightforward(
    start: Tensor, state: Tensor, moved: Tensor, attend: Tensor, gate: Tensor, expand: Tensor, contract: Tensor
) -> Tensor:
    """Compute in the tensors' precision, with the formula's [B, I, T, K] tensors."""
    update_BGTK = torch.einsum("gh,bhtk->bgtk", attend, moved)
    up_BITK = torch.einsum("ig,bgtk->bitk", expand, start.to(state.dtype) + state + update_BGTK)
    gated_BITK = F.silu(gate).transpose(1, 2)[..., None] * up_BITK
    return state + update_BGTK + torch.einsum("gi,bitk->bgtk", contract, gated_BITK)


def case(shape: Mix, setting: Setting) -> BenchmarkCase:
    generator = torch.Generator(setting.device).manual_seed(0)

    def normal(*size: int, std: float = 1.0) -> Tensor:
        drawn = std * torch.randn(size, generator=generator, device=setting.device)
        return drawn.to(setting.dtype)

    batch, heads, groups, rank, tokens, width = astuple(shape)
    angles = torch.rand(1, 1, tokens, width // 2, generator=generator, device=setting.device)
    wanted = {
        "state": normal(batch, tokens, groups, width, std=0.1).transpose(1, 2),
        "moved": normal(batch, tokens, heads, 2 * width).transpose(1, 2)[..., width:],  # the end of attention's output
        "attend": normal(groups, heads, std=0.1),
        "gate": normal(batch, tokens, rank),
        "expand": normal(rank, groups, std=0.1),
        "contract": normal(groups, rank, std=0.1),
    }
    inputs = {"start": torch.cat((angles.cos(), angles.sin()), dim=-1)}
    inputs |= {name: x.detach().requires_grad_() for name, x in wanted.items()}
    returned = normal(batch, tokens, groups, width).transpose(1, 2)
    ours = functools.partial(position_mix, dtype=setting.dtype)
    return fused_operation(ours, straightforward, {"tape": inputs}, returned, setting.dtype)
