"""The rotation of queries: the customary ``x cos + rotate_half(x) sin``, compiled, and ours.

RoPE rotates by the start alone; TAPE by the start plus each head's deviation, which gets a gradient.

Shape letters: B batch, T tokens, H query heads, G key/value heads, K head size.
"""

import torch
from torch import Tensor

from benchmarks.benchmark_case import BASELINE, BenchmarkCase, Setting, fused_operation
from benchmarks.shapes import AttentionShape
from tape_ds.kernels.rotate import rotate


def straightforward(x_BHTK: Tensor, start_B1TK: Tensor, state_BGTK: Tensor | None = None) -> Tensor:
    """Rotate as Llama's code does: cosines and sines K wide each, in the precision of ``x``."""
    e_BGTK = start_B1TK if state_BGTK is None else start_B1TK + state_BGTK
    e_BGTK = e_BGTK.to(x_BHTK.dtype)
    if e_BGTK.shape[1] not in (1, x_BHTK.shape[1]):
        e_BGTK = e_BGTK.repeat_interleave(x_BHTK.shape[1] // e_BGTK.shape[1], dim=1)
    cos, sin = (torch.cat((half, half), dim=-1) for half in e_BGTK.chunk(2, dim=-1))
    real, imaginary = x_BHTK.chunk(2, dim=-1)
    return x_BHTK * cos + torch.cat((-imaginary, real), dim=-1) * sin


def case(shape: AttentionShape, setting: Setting) -> BenchmarkCase:
    generator = torch.Generator(setting.device).manual_seed(0)

    def normal(heads: int, std: float = 1.0) -> Tensor:
        size = (shape.batch, shape.tokens, heads, shape.width)
        drawn = std * torch.randn(size, generator=generator, device=setting.device)
        return drawn.to(setting.dtype).transpose(1, 2)

    angles = torch.rand(1, 1, shape.tokens, shape.width // 2, generator=generator, device=setting.device)
    start = torch.cat((angles.cos(), angles.sin()), dim=-1)
    x, state, returned = normal(shape.heads), normal(shape.groups, std=0.1), normal(shape.heads)
    alone = {"x": x.requires_grad_(), "start": start}
    inputs = {BASELINE: alone, "tape": alone | {"state": state.requires_grad_()}}
    return fused_operation(rotate, straightforward, inputs, returned, setting.dtype)
