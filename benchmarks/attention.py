"""Attention over a text: RoPE's, and TAPE's in every way that libraries offer beside our kernel.

TAPE's value is ``[v | e]``, twice as wide as the key. A library that wants equal widths is called twice with the same
queries and keys, once with queries and keys padded by zeros, or once with the two halves stacked as twice the rows.
Those that take the halves apart are given them apart: no copy is put on their account. Everything lies in memory as
projections leave it, [B, T, H, K], but for ``[v | e]``: that is contiguous, as the model's concatenation leaves it.

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
from tape_ds.model import attention

Parts = tuple[Tensor, ...]
Make = Callable[[], Callable[..., Any]]


class AttentionInputs(NamedTuple):
    """Queries, keys, both halves of the value, and what comes back to both halves of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    e: Tensor
    dv: Tensor
    de: Tensor

    def double(self) -> "AttentionInputs":
        """In fp64."""
        return AttentionInputs(*(x.double() for x in self))


class PackingLayout(NamedTuple):
    """In which pieces an implementation takes its value and gives its output."""

    values: Callable[[Tensor, Tensor], Parts]
    """(v, e) -> the pieces."""
    output: Callable[[Parts], Tensor]
    """The output's pieces -> [A v | A e]."""
    at_once: bool = False
    """Whether one call takes all pieces and gives as many; else there is a call for each."""

    def returned(self, dv: Tensor, de: Tensor) -> Parts:
        """Return what comes back to each piece of the output, in memory as the piece."""
        pieces = [x.detach().requires_grad_() for x in self.values(dv, de)]
        out = self.output(tuple(pieces))
        found = torch.autograd.grad(out, pieces, _joined((dv, de))[..., : out.shape[-1]])  # RoPE's is the first half
        return tuple(torch.empty_like(x).copy_(each) for x, each in zip(pieces, found, strict=True))

    def gradient(self, v: Tensor, e: Tensor, dvalues: Parts) -> Tensor:
        """The gradients of the values' pieces -> [dV | dE]."""
        leaves = [x.detach().requires_grad_() for x in (v, e)]
        found = torch.autograd.grad(self.values(*leaves), leaves, dvalues, allow_unused=True)
        return _joined(tuple(x for x in found if x is not None))


def _joined(parts: Parts) -> Tensor:
    return torch.cat(parts, dim=-1)


def _thrice(v: Tensor, e: Tensor) -> Parts:
    """Return the value, and cosines and sines K wide each: two equal halves."""
    cos, sin = e.chunk(2, dim=-1)
    return v, torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)


def _thrice_output(parts: Parts) -> Tensor:
    v, cos, sin = parts
    return torch.cat((v, cos.chunk(2, dim=-1)[0], sin.chunk(2, dim=-1)[0]), dim=-1)


def _stacked(v: Tensor, e: Tensor) -> Parts:
    """Twice the rows, in memory [2 B, T, H, K] like the rest."""
    return (torch.cat((v.transpose(1, 2), e.transpose(1, 2))).transpose(1, 2),)


PLAIN = PackingLayout(lambda v, e: (v,), _joined)
APART = PackingLayout(lambda v, e: (v, e), _joined)
ALONE = PLAIN._replace(at_once=True)
TOGETHER = APART._replace(at_once=True)
WIDE = PackingLayout(lambda v, e: (_joined((v, e)),), _joined)
STACKED = PackingLayout(_stacked, lambda parts: _joined(parts[0].chunk(2)))
THRICE = PackingLayout(_thrice, _thrice_output)


class Implementation(NamedTuple):
    """One way to compute an encoding's attention."""

    encoding: str
    name: str
    layout: PackingLayout
    make: Make
    """Makes the call; raises where the machine lacks something."""
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """What must hold while it runs, forward and backward."""


def implementations(shape: AttentionShape, device: torch.device) -> Iterator[Implementation]:
    """Yield all on this device."""
    documents = calls.documents_of(shape, device)
    on_cpu = device.type == "cpu"
    makers: dict[str, Make] = {}
    if documents is None:
        makers |= {
            f"sdpa {name}": functools.partial(calls.sdpa, name) for name in (calls.ON_CPU if on_cpu else calls.SDPA)
        }
    if not on_cpu:
        makers |= {
            name: functools.partial(calls.by_library, release, documents) for name, release in calls.LIBRARIES.items()
        }
    for name, make in makers.items():
        yield Implementation(BASELINE, name, PLAIN, make)
        yield Implementation("tape", f"two calls, {name}", APART, make)
        yield Implementation("tape", f"stacked, {name}", STACKED, functools.partial(calls.stacked, make))
        if documents is None:
            yield Implementation("tape", f"padded, {name}", WIDE, functools.partial(calls.padded, make))
        if name not in ("sdpa flash", "flash-attn 2"):  # both take one width alone
            yield Implementation("tape", f"one call, {name}", WIDE, make)
    if documents is None:
        yield Implementation("tape", "three calls, sdpa flash (published form)", THRICE, makers["sdpa flash"])
    if not on_cpu:
        varlen = functools.partial(calls.attend, "varlen", documents)
        yield Implementation(
            "tape", "stacked, varlen", STACKED._replace(at_once=True), functools.partial(calls.stacked, varlen)
        )
        for encoding, layout in ((BASELINE, PLAIN), ("tape", WIDE)):
            yield Implementation(encoding, "fla", layout, functools.partial(calls.fla, documents))
        for name, small in (("flex", False), ("flex, small blocks", True)):
            yield Implementation("tape", name, WIDE, functools.partial(calls.flex, shape, documents, device, small))
        for name, deterministic in (("ours", False), ("ours, deterministic", True)):
            yield Implementation("tape", name, TOGETHER, functools.partial(ours, documents, deterministic))
    backends = ("auto", "sdpa", "reference") if on_cpu else ("auto", *attention.available())
    for name in backends:
        make = functools.partial(calls.attend, name, documents)
        yield Implementation(BASELINE, f"attend {name}", ALONE, make)
        yield Implementation("tape", f"attend {name}", TOGETHER, make)


def ours(documents: calls.PackedDocuments | None, deterministic: bool) -> Callable[..., Parts]:
    """Our kernel, where it is compiled."""
    calls.refuse_interpreter()
    return calls.ours(documents, deterministic)


def case(shape: AttentionShape, setting: Setting) -> BenchmarkCase:
    """Return every implementation at one shape."""
    return between(implementations(shape, setting.device), shape, setting)


def between(asked: Iterable[Implementation], shape: AttentionShape, setting: Setting) -> BenchmarkCase:
    """These implementations on the same inputs."""
    inputs = draw(shape, setting)
    documents = calls.documents_of(shape, setting.device)

    @functools.cache
    def leaves(layout: PackingLayout) -> tuple[Tensor, ...]:
        """Shared by all implementations of a layout."""
        values = layout.values(inputs.v, inputs.e)
        return tuple(x.detach().requires_grad_() for x in (inputs.q, inputs.k, *values))

    entries = [CaseEntry(each.name, each.encoding, functools.partial(_runner, each, leaves, inputs)) for each in asked]
    lengths = (shape.tokens,) if documents is None else documents.lengths
    truth = {name: functools.partial(truth_of, inputs, name, lengths) for name in (BASELINE, "tape")}
    return BenchmarkCase(entries, truth)


def draw(shape: AttentionShape, setting: Setting) -> AttentionInputs:
    """Normal numbers, always the same."""
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
    returned = layout.returned(inputs.dv, inputs.de)

    def forward() -> Parts:
        with implementation.around():
            return call(q, k, *values) if layout.at_once else tuple(call(q, k, value) for value in values)

    def backward(out: Parts) -> tuple[Tensor, ...]:
        with implementation.around():
            return torch.autograd.grad(out, own, returned)

    def outcome() -> dict[str, Tensor]:
        out = forward()
        dq, dk, *dvalues = backward(out)
        return {
            "out": layout.output(out),
            "dq": dq,
            "dk": dk,
            "dv": layout.gradient(inputs.v, inputs.e, tuple(dvalues)),
        }

    return Runner(forward, backward, outcome, bytes_of(own))


def truth_of(inputs: AttentionInputs, encoding: str, lengths: Sequence[int]) -> Truth:
    """By plain matrices in fp64; and how far the same matrices in the inputs' precision are from that."""
    with_state = encoding != BASELINE
    exact, plain = (_by_heads(each, with_state, lengths) for each in (inputs.double(), inputs))
    return expected_from(exact, plain, inputs.q.dtype)


def _by_heads(inputs: AttentionInputs, with_state: bool, lengths: Sequence[int]) -> dict[str, Tensor]:
    """Output and gradients of plain attention, one document of one head of one sequence at a time: its matrix is
    whole."""
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
