"""One new token over a long cache, forward only: what a step of generation costs.

The cache holds TAPE's value as the model keeps it, ``[v | e]`` in one tensor; its halves are read as views.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import calls
from benchmarks.benchmark_case import BASELINE, BenchmarkCase, CaseEntry, Setting, Truth, operation, truth_of
from benchmarks.measure import Runner
from benchmarks.shapes import Decode

# Those that ``choose`` chooses from, and what it has chosen
BACKENDS = {"cuda": ("triton", "sdpa", "flash", "auto"), "cpu": ("auto",)}


def case(shape: Decode, setting: Setting) -> BenchmarkCase:
    generator = torch.Generator(setting.device).manual_seed(0)

    def draw(heads: int, tokens: int, width: int) -> Tensor:
        size = (shape.batch, heads, tokens, width)
        return torch.randn(size, generator=generator, device=setting.device).to(setting.dtype)

    q = draw(shape.heads, 1, shape.width)
    k, wide = (draw(shape.groups, shape.keys, width) for width in (shape.width, 2 * shape.width))
    values = {BASELINE: wide[..., : shape.width].contiguous(), "tape": wide}
    inputs = {encoding: {"q": q, "k": k, "v": value} for encoding, value in values.items()}

    def attend(backend: str, encoding: str) -> Runner:
        function = calls.attend(backend)

        def call(q: Tensor, k: Tensor, value: Tensor) -> Tensor:
            return torch.cat(function(q, k, *value.split(shape.width, dim=-1)), dim=-1)

        return operation(call, inputs[encoding])

    def plain(encoding: str) -> Runner:
        return operation(calls.plain_attention, inputs[encoding])

    def truth(encoding: str) -> Truth:
        return truth_of(calls.plain_attention, inputs[encoding], setting.dtype)

    makers: dict[str, Callable[[str], Runner]] = {"plain matrices": plain}
    makers |= {f"attend {name}": functools.partial(attend, name) for name in BACKENDS[setting.device.type]}
    entries = [
        CaseEntry(name, encoding, functools.partial(make, encoding))
        for name, make in makers.items()
        for encoding in inputs
    ]
    return BenchmarkCase(entries, {encoding: functools.partial(truth, encoding) for encoding in inputs})
