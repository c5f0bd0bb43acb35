"""One new token over a long cache, forward only: what a step of generation costs.

The cache holds TAPE's value as the model keeps it, ``[v | e]`` in one tensor; its halves are read as views.
"""

import functools

import torch
from torch import Tensor

from benchmarks.attention import attend, plain_attention
from benchmarks.benchmark_case import BASELINE, BenchmarkCase, CaseEntry, Setting, operation, truth_of
from benchmarks.measure import Runner
from benchmarks.shapes import Shape

# Those that ``choose`` chooses from, and what it has chosen
BACKENDS = {"cuda": ("triton", "sdpa", "flash", "auto"), "cpu": ("auto",)}


def case(shape: Shape, setting: Setting) -> BenchmarkCase:
    generator = torch.Generator(setting.device).manual_seed(0)

    def draw(heads: int, tokens: int, width: int) -> Tensor:
        size = (shape.batch, heads, tokens, width)
        return torch.randn(size, generator=generator, device=setting.device).to(setting.dtype)

    q = draw(shape.heads, 1, shape.width)
    k, wide = (draw(shape.groups, shape.keys, width) for width in (shape.width, 2 * shape.width))
    values = {BASELINE: wide[..., : shape.width].contiguous(), "tape": wide}
    inputs = {encoding: {"q": q, "k": k, "v": value} for encoding, value in values.items()}

    def build(encoding: str, backend: str | None) -> Runner:
        if backend is None:
            return operation(plain_attention, inputs[encoding])
        function = attend(backend)

        def call(q: Tensor, k: Tensor, value: Tensor) -> Tensor:
            return torch.cat(function(q, k, *value.split(shape.width, dim=-1)), dim=-1)

        return operation(call, inputs[encoding])

    entries = [
        CaseEntry(f"attend {backend}" if backend else "plain matrices", name, functools.partial(build, name, backend))
        for backend in (None, *BACKENDS[setting.device.type])
        for name in inputs
    ]
    truth = {name: functools.partial(truth_of, plain_attention, own, setting.dtype) for name, own in inputs.items()}
    return BenchmarkCase(entries, truth)
