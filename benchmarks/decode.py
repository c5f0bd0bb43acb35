"""One new token over a long cache, forward only: what a step of generation costs.

The cache holds TAPE's value as the model keeps it, ``[v | e]`` in one tensor; two calls read its halves as views.
"""

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks import calls
from benchmarks.benchmark_case import BASELINE, BenchmarkCase, CaseEntry, Setting, Truth, operation, truth_of
from benchmarks.measure import Runner
from benchmarks.shapes import Decode
from tape_ds.kernels.decode_attention import decode_attention

Make = Callable[[], Callable[..., Tensor]]


def case(shape: Decode, setting: Setting) -> BenchmarkCase:
    """Return every implementation over one cache; RoPE's is the first half of TAPE's values, in memory of its own."""
    generator = torch.Generator(setting.device).manual_seed(0)

    def draw(heads: int, tokens: int, width: int) -> Tensor:
        size = (shape.batch, heads, tokens, width)
        return torch.randn(size, generator=generator, device=setting.device).to(setting.dtype)

    q = draw(shape.heads, 1, shape.width)
    k, wide = (draw(shape.groups, shape.keys, width) for width in (shape.width, 2 * shape.width))
    values = {BASELINE: wide[..., : shape.width].contiguous(), "tape": wide}
    inputs = {encoding: {"q": q, "k": k, "v": value} for encoding, value in values.items()}

    def build(encoding: str, make: Make) -> Runner:
        return operation(make(), inputs[encoding])

    def truth(encoding: str) -> Truth:
        return truth_of(calls.plain_attention, inputs[encoding], setting.dtype)

    entries = [
        CaseEntry(name, encoding, functools.partial(build, encoding, make))
        for encoding, name, make in implementations(setting.device)
    ]
    return BenchmarkCase(entries, {encoding: functools.partial(truth, encoding) for encoding in inputs})


def implementations(device: torch.device) -> Iterator[tuple[str, str, Make]]:
    """(encoding, name, what makes the call) of every implementation on this device."""
    for name in calls.ON_CPU if device.type == "cpu" else calls.SDPA:
        make = functools.partial(calls.sdpa, name)
        yield BASELINE, f"sdpa {name}", make
        yield "tape", f"two calls, sdpa {name}", functools.partial(calls.halves, make)
        if name != "flash":  # takes one width alone
            yield "tape", f"one call, sdpa {name}", make
    attends = ("auto", "flash", "sdpa", "triton") if device.type == "cuda" else ("auto",)  # `choose` needs the three
    for encoding in (BASELINE, "tape"):
        yield encoding, "plain matrices", lambda: calls.plain_attention
        if device.type == "cuda":
            yield encoding, "ours", functools.partial(_of_halves, _ours)
        for name in attends:
            yield encoding, f"attend {name}", functools.partial(_of_halves, functools.partial(calls.attend, name))


def _ours() -> Callable[..., tuple[Tensor | None, ...]]:
    calls.refuse_interpreter()
    return decode_attention


def _of_halves(make: Callable[[], Callable[..., tuple[Tensor | None, ...]]]) -> Callable[..., Tensor]:
    """With the value and the state, where there is one, where they lie in the cache."""
    function = make()

    def call(q: Tensor, k: Tensor, value: Tensor) -> Tensor:
        parts = function(q, k, *value.split(q.shape[-1], dim=-1))
        return torch.cat([x for x in parts if x is not None], dim=-1)

    return call
