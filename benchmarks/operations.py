"""The fused operations other than attention: the customary form, compiled, and ours.

The rotation of queries is ``x cos + rotate_half(x) sin``; RoPE rotates by the start alone, TAPE by the start plus each
head's deviation, which gets a gradient. The update of the position state is
``d' = d + u + W_down diag(SiLU(g)) W_up (start + d + u)`` with ``u = W_att A e``.

Shape letters: B batch, T tokens, H query heads, G key/value heads, I position rank, K head size.
"""

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.benchmark_case import BASELINE, BenchmarkCase, Setting, fused_operation
from benchmarks.shapes import Shape
from tape_ds.kernels.position_mix import position_mix as our_position_mix
from tape_ds.kernels.rotate import rotate as our_rotate


class Draw:
    """Random inputs, always the same."""

    def __init__(self, shape: Shape, setting: Setting):
        self.setting = setting
        self.generator = torch.Generator(setting.device).manual_seed(0)
        size = (1, 1, shape.tokens, shape.width // 2)
        angles = torch.rand(size, generator=self.generator, device=setting.device)
        self.start = torch.cat((angles.cos(), angles.sin()), dim=-1)

    def normal(self, *size: int, std: float = 1.0) -> Tensor:
        drawn = std * torch.randn(size, generator=self.generator, device=self.setting.device)
        return drawn.to(self.setting.dtype)


def rotate_as_llama(x_BHTK: Tensor, start_B1TK: Tensor, state_BGTK: Tensor | None = None) -> Tensor:
    """Rotate with cosines and sines K wide each, in the precision of ``x``."""
    e_BGTK = start_B1TK
    if state_BGTK is not None:
        e_BGTK = start_B1TK + state_BGTK
    e_BGTK = e_BGTK.to(x_BHTK.dtype)
    if e_BGTK.shape[1] not in (1, x_BHTK.shape[1]):
        e_BGTK = e_BGTK.repeat_interleave(x_BHTK.shape[1] // e_BGTK.shape[1], dim=1)
    cos, sin = e_BGTK.chunk(2, dim=-1)
    # transformers' order: column j and j + K / 2 are a pair
    cos = torch.cat((cos, cos), dim=-1)
    sin = torch.cat((sin, sin), dim=-1)
    real, imaginary = x_BHTK.chunk(2, dim=-1)
    return x_BHTK * cos + torch.cat((-imaginary, real), dim=-1) * sin


def rotate(shape: Shape, setting: Setting) -> BenchmarkCase:
    draw = Draw(shape, setting)
    batch = shape.batch
    tokens = shape.tokens
    width = shape.width
    x, state, returned = (
        draw.normal(batch, tokens, heads, width, std=std).transpose(1, 2)
        for heads, std in ((shape.heads, 1.0), (shape.groups, 0.1), (shape.heads, 1.0))
    )
    alone = {"x": x.requires_grad_(), "start": draw.start}
    inputs = {BASELINE: alone, "tape": alone | {"state": state.requires_grad_()}}
    return fused_operation(our_rotate, rotate_as_llama, inputs, returned, setting.dtype)


def mix_as_published(
    start: Tensor,
    state: Tensor,
    moved: Tensor,
    attend: Tensor,
    gate: Tensor,
    expand: Tensor,
    contract: Tensor,
) -> Tensor:
    """Compute in the tensors' precision, with the formula's [B, I, T, K] tensors."""
    update_BGTK = torch.einsum("gh,bhtk->bgtk", attend, moved)
    up_BITK = torch.einsum("ig,bgtk->bitk", expand, start.to(state.dtype) + state + update_BGTK)
    gated_BITK = F.silu(gate).transpose(1, 2)[..., None] * up_BITK
    return state + update_BGTK + torch.einsum("gi,bitk->bgtk", contract, gated_BITK)


def position_mix(shape: Shape, setting: Setting) -> BenchmarkCase:
    draw = Draw(shape, setting)
    batch = shape.batch
    tokens = shape.tokens
    width = shape.width
    heads = shape.heads
    groups = shape.groups
    rank = shape.rank
    trained = {
        "state": draw.normal(batch, tokens, groups, width, std=0.1).transpose(1, 2),
        # the end of attention's output
        "moved": draw.normal(batch, tokens, heads, 2 * width).transpose(1, 2)[..., width:],
        "attend": draw.normal(groups, heads, std=0.1),
        "gate": draw.normal(batch, tokens, rank),
        "expand": draw.normal(rank, groups, std=0.1),
        "contract": draw.normal(groups, rank, std=0.1),
    }
    inputs = {"start": draw.start} | {
        name: x.detach().requires_grad_() for name, x in trained.items()
    }
    returned = draw.normal(batch, tokens, groups, width).transpose(1, 2)
    ours = functools.partial(our_position_mix, dtype=setting.dtype)
    return fused_operation(ours, mix_as_published, {"tape": inputs}, returned, setting.dtype)
