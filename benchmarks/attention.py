"""Attention over a text: RoPE's, and TAPE's in every way that libraries offer beside our kernel.

TAPE's value is ``[v | e]``, twice as wide as the key. A library that wants equal widths is called twice with the same
queries and keys, or once with queries and keys padded by zeros. Rivals that take the two halves apart are given them
apart: no copy is put on their account. Queries and keys lie in memory as projections leave them, [B, T, H, K]; the
pieces of a value are contiguous, as the model's concatenation leaves ``[v | e]``, RoPE's alone too.

Shape letters: B batch, T queries and keys, H query heads, G key/value heads, K head size, V value width.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks import calls
from benchmarks.contest import BASELINE, Contest, Entry, Setting, Truth, expected_from
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import Attention
from tape_ds.model import attention

Parts = tuple[Tensor, ...]
Make = Callable[[], Callable[..., Tensor]]


class Inputs(NamedTuple):
    """Queries, keys, both halves of the value, and what comes back to both halves of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    e: Tensor
    dv: Tensor
    de: Tensor

    def double(self) -> "Inputs":
        """In fp64."""
        return Inputs(*(x.double() for x in self))


class Layout(NamedTuple):
    """In which pieces a rival takes its value and gives its output."""

    values: Callable[[Tensor, Tensor], Parts]
    """(v, e) -> the pieces, each contiguous."""
    returned: Callable[[Tensor, Tensor], Parts]
    """(dv, de) -> what comes back to each piece of the output."""
    output: Callable[[Parts], Tensor]
    """The output's pieces -> [A v | A e]."""
    gradient: Callable[[Parts], Tensor]
    """The gradients of the values' pieces -> [dV | dE]."""


def _joined(parts: Parts) -> Tensor:
    return torch.cat(parts, dim=-1)


def _thrice(v: Tensor, e: Tensor) -> Parts:
    """The value, and cosines and sines K wide each: two equal halves."""
    cos, sin = e.chunk(2, dim=-1)
    return v, torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)


def _thrice_returned(dv: Tensor, de: Tensor) -> Parts:
    dv, dcos, dsin = _thrice(dv, de)
    return dv, dcos / 2, dsin / 2


def _thrice_output(parts: Parts) -> Tensor:
    v, cos, sin = parts
    return torch.cat((v, cos.chunk(2, dim=-1)[0], sin.chunk(2, dim=-1)[0]), dim=-1)


def _thrice_gradient(parts: Parts) -> Tensor:
    v, cos, sin = parts
    return torch.cat((v, *(torch.stack(full.chunk(2, dim=-1)).sum(dim=0) for full in (cos, sin))), dim=-1)


def _first(v: Tensor, e: Tensor) -> Parts:
    return (v,)


def _both(v: Tensor, e: Tensor) -> Parts:
    return v, e


def _side_by_side(v: Tensor, e: Tensor) -> Parts:
    return (_joined((v, e)),)


PLAIN = Layout(_first, _first, _joined, _joined)
APART = Layout(_both, _both, _joined, _joined)
WIDE = Layout(_side_by_side, _side_by_side, _joined, _joined)
THRICE = Layout(_thrice, _thrice_returned, _thrice_output, _thrice_gradient)


def rivals(shape: Attention, device: torch.device) -> Iterator[tuple[str, str, Layout, Make]]:
    """(encoding, name, layout, what makes the call) of every rival on this device."""
    on_cpu = device.type == "cpu"
    names = calls.ON_CPU if on_cpu else tuple(calls.SDPA)
    libraries = {} if on_cpu else calls.LIBRARIES
    makers: dict[str, Make] = {f"sdpa {name}": functools.partial(calls.sdpa, name) for name in names}
    makers |= {name: functools.partial(calls.by_library, module) for name, module in libraries.items()}
    for name, make in makers.items():
        yield BASELINE, name, PLAIN, make
        yield "tape", f"two calls, {name}", APART, make
        yield "tape", f"padded, {name}", WIDE, functools.partial(calls.padded, make)
    for name, make in makers.items():
        if name not in ("sdpa flash", "flash-attn 2"):  # both take one width alone
            yield "tape", f"one call, {name}", WIDE, make
    yield "tape", "three calls, sdpa flash (published form)", THRICE, makers["sdpa flash"]
    if not on_cpu:
        yield "tape", "flex", WIDE, functools.partial(calls.flex, shape, device, None)
        yield "tape", "flex, smaller blocks", WIDE, functools.partial(calls.flex, shape, device, calls.FLEX_BLOCKS)
        yield "tape", "ours", WIDE, functools.partial(calls.ours, False)
        yield "tape", "ours, deterministic", WIDE, functools.partial(calls.ours, True)
    backends = ("auto", "sdpa", "reference") if on_cpu else ("auto", *attention.available())
    for name in backends:
        yield BASELINE, f"attend {name}", PLAIN, functools.partial(calls.attend, name)
        yield "tape", f"attend {name}", WIDE, functools.partial(calls.attend, name)


def contest(shape: Attention, setting: Setting) -> Contest:
    """Every rival at one shape."""
    inputs = draw(shape, setting)

    @functools.cache
    def leaves(layout: Layout) -> tuple[Tensor, ...]:
        """Shared by all rivals of a layout."""
        values = [x.contiguous() for x in layout.values(inputs.v, inputs.e)]
        return tuple(x.detach().requires_grad_() for x in (inputs.q, inputs.k, *values))

    entries = [
        Entry(name, encoding, functools.partial(_runner, make, layout, leaves, inputs))
        for encoding, name, layout, make in rivals(shape, setting.device)
    ]
    truth = {name: functools.partial(truth_of, inputs, name) for name in (BASELINE, "tape")}
    return Contest(entries, truth)


def draw(shape: Attention, setting: Setting) -> Inputs:
    """Normal numbers, always the same."""
    generator = torch.Generator(setting.device).manual_seed(0)

    def one(heads: int) -> Tensor:
        size = (shape.batch, shape.tokens, heads, shape.width)
        drawn = torch.randn(size, generator=generator, device=setting.device)
        return drawn.to(setting.dtype).transpose(1, 2)

    return Inputs(*(one(heads) for heads in (shape.heads, *3 * [shape.groups], *2 * [shape.heads])))


def _runner(
    make: Make,
    layout: Layout,
    leaves: Callable[[Layout], tuple[Tensor, ...]],
    inputs: Inputs,
) -> Runner:
    call = make()
    own = leaves(layout)
    q, k, *values = own
    returned = layout.returned(inputs.dv, inputs.de)

    def forward() -> Parts:
        return tuple(call(q, k, value) for value in values)

    def backward(out: Parts) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, own, returned)

    def outcome() -> dict[str, Tensor]:
        out = forward()
        dq, dk, *dvalues = backward(out)
        return {"out": layout.output(out), "dq": dq, "dk": dk, "dv": layout.gradient(tuple(dvalues))}

    return Runner(forward, backward, outcome, bytes_of(own))


def truth_of(inputs: Inputs, encoding: str) -> Truth:
    """By plain matrices in fp64; and how far the same matrices in the inputs' precision are from that."""
    with_state = encoding != BASELINE
    exact, plain = (_by_heads(each, with_state) for each in (inputs.double(), inputs))
    return expected_from(exact, plain, inputs.q.dtype)


def _by_heads(inputs: Inputs, with_state: bool) -> dict[str, Tensor]:
    """Output and gradients of plain attention, one head of one row at a time: their matrices are T x T."""
    batch, heads = inputs.q.shape[:2]
    group = heads // inputs.k.shape[1]
    v = _joined((inputs.v, inputs.e)) if with_state else inputs.v
    returned = _joined((inputs.dv, inputs.de)) if with_state else inputs.dv
    whole = {"out": torch.empty_like(returned)}
    whole |= {name: torch.zeros_like(x) for name, x in (("dq", inputs.q), ("dk", inputs.k), ("dv", v))}
    for row in range(batch):
        for head in range(heads):
            own = (slice(row, row + 1), slice(head, head + 1))
            shared = (own[0], slice(head // group, head // group + 1))
            leaves = [x.detach().requires_grad_() for x in (inputs.q[own], inputs.k[shared], v[shared])]
            out = calls.plain_attention(*leaves)
            whole["out"][own] = out.detach()
            for name, at, gradient in zip(
                ("dq", "dk", "dv"), (own, shared, shared), torch.autograd.grad(out, leaves, returned[own]), strict=True
            ):
                whole[name][at] += gradient
    return whole
