"""Attention over a text: RoPE's, and TAPE's by every backend of torch and of the model.

TAPE's value is ``[v | e]``, twice as wide as the key. Implementations of equal widths are called twice with the same
queries and keys and one half each, without copies. Memory layouts are those of projections, [B, T, H, K], except that
``[v | e]`` in one tensor is contiguous, as after the model's concatenation.

Shape letters: B batch, T queries and keys, H query heads, G key/value heads, K head size, V value width.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks import calls
from benchmarks.benchmark_case import BASELINE, BenchmarkCase, CaseEntry, Setting, Truth, expected_from
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import AttentionShape
from tape_ds import attention

Parts = tuple[Tensor, ...]
Make = Callable[[], Callable[..., Any]]


class AttentionInputs(NamedTuple):
    """Queries, keys, both halves of the value, and the gradients of both halves of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    e: Tensor
    dv: Tensor
    de: Tensor

    def double(self) -> "AttentionInputs":
        return AttentionInputs(*(x.double() for x in self))


class PackingLayout(NamedTuple):
    """The pieces in which an implementation takes its value and gives its output."""

    values: Callable[[Tensor, Tensor], Parts]
    at_once: bool = False
    """One call for all pieces; otherwise a call for each."""


def _joined(parts: Parts) -> Tensor:
    return torch.cat(parts, dim=-1)


PLAIN = PackingLayout(lambda v, e: (v,))
APART = PackingLayout(lambda v, e: (v, e))
ALONE = PLAIN._replace(at_once=True)
TOGETHER = APART._replace(at_once=True)
WIDE = PackingLayout(lambda v, e: (_joined((v, e)),))
# Backends of the model that come first: a run may be cut short, and the others compile for long or are missing
USUAL = ("varlen", "triton", "sdpa", "auto")


class Implementation(NamedTuple):
    encoding: str
    name: str
    layout: PackingLayout
    make: Make
    """Makes the call; raises where the machine lacks something."""
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """The context that it runs in, forward and backward."""


def implementations(shape: AttentionShape, device: torch.device) -> Iterator[Implementation]:
    documents = calls.documents_of(shape, device)
    on_cpu = device.type == "cpu"
    others = () if on_cpu else tuple(name for name in attention.available() if name not in USUAL)
    attends = ("auto", "sdpa", "reference") if on_cpu else USUAL
    by_torch = () if documents is not None else calls.ON_CPU if on_cpu else tuple(calls.SDPA)

    def attended(name: str) -> Iterator[Implementation]:
        make = functools.partial(calls.attend, name, documents)
        yield Implementation(BASELINE, f"attend {name}", ALONE, make)
        yield Implementation("tape", f"attend {name}", TOGETHER, make)

    for name in attends:
        yield from attended(name)
    for name in by_torch:
        make = functools.partial(calls.sdpa, name)
        yield Implementation(BASELINE, f"sdpa {name}", PLAIN, make)
        yield Implementation("tape", f"two calls, sdpa {name}", APART, make)
        if name != "flash":  # takes a single width
            yield Implementation("tape", f"one call, sdpa {name}", WIDE, make)
    for name in others:
        yield from attended(name)


def case(shape: AttentionShape, setting: Setting) -> BenchmarkCase:
    return between(implementations(shape, setting.device), shape, setting)


def between(asked: Iterable[Implementation], shape: AttentionShape, setting: Setting) -> BenchmarkCase:
    inputs = draw(shape, setting)
    documents = calls.documents_of(shape, setting.device)

    @functools.cache
    def leaves(layout: PackingLayout) -> Parts:
        values = layout.values(inputs.v, inputs.e)
        return tuple(x.detach().requires_grad_() for x in (inputs.q, inputs.k, *values))

    entries = [CaseEntry(each.name, each.encoding, functools.partial(_runner, each, leaves, inputs)) for each in asked]
    lengths = (shape.tokens,) if documents is None else documents.lengths
    truth = {name: functools.partial(truth_of, inputs, name, lengths) for name in (BASELINE, "tape")}
    return BenchmarkCase(entries, truth)


def draw(shape: AttentionShape, setting: Setting) -> AttentionInputs:
    generator = torch.Generator(setting.device).manual_seed(0)

    def one(heads: int) -> Tensor:
        size = (shape.batch, shape.tokens, heads, shape.width)
        drawn = torch.randn(size, generator=generator, device=setting.device)
        return drawn.to(setting.dtype).transpose(1, 2)

    return AttentionInputs(*(one(heads) for heads in (shape.heads, *3 * [shape.groups], *2 * [shape.heads])))


def _runner(
    implementation: Implementation, leaves: Callable[[PackingLayout], tuple[Tensor, ...]], inputs: AttentionInputs
) -> Runner:
    call, layout = implementation.make(), implementation.layout
    own = leaves(layout)
    q, k, *values = own
    returned = layout.values(inputs.dv, inputs.de)

    def forward() -> Parts:
        with implementation.around():
            return call(q, k, *values) if layout.at_once else tuple(call(q, k, value) for value in values)

    def backward(out: Parts) -> tuple[Tensor, ...]:
        with implementation.around():
            return torch.autograd.grad(out, own, returned)

    def outcome() -> dict[str, Tensor]:
        out = forward()
        dq, dk, *dvalues = backward(out)
        return {"out": _joined(out), "dq": dq, "dk": dk, "dv": _joined(tuple(dvalues))}

    return Runner(forward, backward, outcome, bytes_of(own))


def truth_of(inputs: AttentionInputs, encoding: str, lengths: Sequence[int]) -> Truth:
    """Compute the truth by plain matrices in fp64, and the error of the same in the inputs' precision."""
    with_state = encoding != BASELINE
    exact, plain = (_by_heads(each, with_state, lengths) for each in (inputs.double(), inputs))
    return expected_from(exact, plain, inputs.q.dtype)


def _by_heads(inputs: AttentionInputs, with_state: bool, lengths: Sequence[int]) -> dict[str, Tensor]:
    """Compute plain attention, whose matrix is whole, for one document, head and sequence at a time."""
    batch, heads = inputs.q.shape[:2]
    group = heads // inputs.k.shape[1]
    v = _joined((inputs.v, inputs.e)) if with_state else inputs.v
    returned = _joined((inputs.dv, inputs.de)) if with_state else inputs.dv
    whole = {"out": torch.empty_like(returned)}
    whole |= {name: torch.zeros_like(x) for name, x in (("dq", inputs.q), ("dk", inputs.k), ("dv", v))}
    ends = list(accumulate(lengths))
    places = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    for row, head, place in itertools.product(range(batch), range(heads), places):
        own = (slice(row, row + 1), slice(head, head + 1), place)
        shared = (own[0], slice(head // group, head // group + 1), place)
        leaves = [x.detach().requires_grad_() for x in (inputs.q[own], inputs.k[shared], v[shared])]
        out = calls.plain_attention(*leaves)
        whole["out"][own] = out.detach()
        for name, at, gradient in zip(
            ("dq", "dk", "dv"), (own, shared, shared), torch.autograd.grad(out, leaves, returned[own]), strict=True
        ):
            whole[name][at] += gradient
    return whole
