"""Attention over a text: RoPE's, and TAPE's by every backend of torch and of the model.

TAPE's value is ``[v | e]``, twice as wide as the key. Implementations of equal widths are called twice with the same
queries and keys and one half each, without copies. Memory layouts are those of projections, [B, T, H, K], except that
``[v | e]`` in one tensor is contiguous, as after the model's concatenation. All are causal; where documents are packed
into a sequence, each is attended to alone.

Shape letters: B batch, T queries and keys, H query heads, G key/value heads, K head size, V value width.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, pairwise
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.benchmark_case import (
    BASELINE,
    BenchmarkCase,
    CaseEntry,
    Setting,
    Truth,
    expected_from,
    operation,
    truth_of,
)
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import Shape, document_lengths
from tape_ds import attention
from tape_ds.attention.attend import attend as attend_in_model
from tape_ds.attention.document_layout import DocumentLayout, layout_of_packed_sequences

# of queries, keys and pieces of the value; gives the output's pieces
Call = Callable[..., tuple[Tensor, ...]]
SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# Most scores for those with whole T x S matrices: on a GPU 12 heads of 8 sequences of 1,024
# tokens, on a CPU of one
MATRIX_ENTRIES = {"cuda": 1 << 28, "cpu": 1 << 24}
# Backends of the model that come first: a run may be cut short, and the others compile for long or are missing
USUAL = ("varlen", "triton", "sdpa", "auto")

# Those that ``choose`` chooses from, and what it has chosen
DECODING = {"cuda": ("triton", "sdpa", "flash", "auto"), "cpu": ("auto",)}


class AttentionInputs(NamedTuple):
    """Queries, keys, both halves of the value, and the gradients of both halves of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    e: Tensor
    dv: Tensor
    de: Tensor


class Implementation(NamedTuple):
    encoding: str
    name: str
    make: Callable[[], Call]
    """Makes the call; raises where the machine lacks something."""
    joined: bool = False
    """Whether TAPE's value is one tensor."""
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """The context that it runs in, forward and backward."""

    def pieces(self, v: Tensor, e: Tensor) -> tuple[Tensor, ...]:
        if self.encoding == BASELINE:
            return (v,)
        if self.joined:
            return (torch.cat((v, e), dim=-1),)
        return (v, e)


def lengths_of(shape: Shape) -> tuple[int, ...] | None:
    """Return the lengths of the documents in each sequence; None where every sequence is one text."""
    if shape.documents:
        return document_lengths(shape.tokens, shape.documents)
    return None


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with whole matrices in the tensors' precision; causal, queries at the end of the keys."""
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, dim=1)
    v = v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if q.shape[2] > 1:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(
            1 + k.shape[2] - q.shape[2]
        )
        scores = scores.masked_fill(unseen, -torch.inf)
    return scores.softmax(dim=-1) @ v


def sdpa(name: str) -> Call:
    """Return torch's attention, limited to one backend, called for each piece of the value."""

    def call(q: Tensor, k: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        _refuse_large_matrices(q, k, name == "math")
        group = q.shape[1] // k.shape[1]
        # refuses grouped queries: a user would repeat keys and values
        if group > 1 and name == "efficient":
            k = k.repeat_interleave(group, 1)
            values = tuple(map(methodcaller("repeat_interleave", group, 1), values))
            group = 1
        causal = q.shape[2] > 1
        grouped = group > 1
        with sdpa_kernel(SDPA[name]):
            return tuple(
                F.scaled_dot_product_attention(q, k, value, is_causal=causal, enable_gqa=grouped)
                for value in values
            )

    return call


def attend(backend: str, lengths: Sequence[int] | None = None) -> Call:
    """Return the model's attention by one of its backends; as in its layers, the layout of documents is ready."""

    @functools.cache
    def layout(sequences: int, device: torch.device) -> DocumentLayout | None:
        if lengths is None:
            return None
        # flash-attn counts over all sequences of a batch
        borders = torch.tensor(
            [0, *accumulate((*lengths,) * sequences)], dtype=torch.int32, device=device
        )
        return layout_of_packed_sequences(borders, max(lengths), sequences, sum(lengths))

    def call(q: Tensor, k: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        _refuse_large_matrices(q, k, backend == "reference")
        return attend_in_model(q, k, values, layout=layout(len(q), q.device), backend=backend)

    return call


def _refuse_large_matrices(q: Tensor, k: Tensor, whole: bool) -> None:
    entries = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    if whole and entries > MATRIX_ENTRIES[q.device.type]:
        raise ValueError(f"not asked: its matrix of scores would have {entries:.1e} entries")


def implementations(shape: Shape, device: torch.device) -> list[Implementation]:
    lengths = lengths_of(shape)
    on_cpu = device.type == "cpu"
    first: Sequence[str] = USUAL
    last = [name for name in attention.available() if name not in USUAL]
    # the kernels need a GPU
    if on_cpu:
        first = ("auto", "sdpa", "reference")
        last = []
    ours = []
    for name in (*first, *last):
        make = functools.partial(attend, name, lengths)
        for encoding in (BASELINE, "tape"):
            ours.append(Implementation(encoding, f"attend {name}", make))
    by_torch = []
    kinds: Collection[str] = SDPA
    if lengths is not None:
        # torch's own takes no documents
        kinds = ()
    elif on_cpu:
        kinds = ("flash", "math")
    for name in kinds:
        make = functools.partial(sdpa, name)
        by_torch.append(Implementation(BASELINE, f"sdpa {name}", make))
        by_torch.append(Implementation("tape", f"two calls, sdpa {name}", make))
        # takes a single width
        if name != "flash":
            by_torch.append(Implementation("tape", f"one call, sdpa {name}", make, joined=True))
    return ours[: 2 * len(first)] + by_torch + ours[2 * len(first) :]


def case(
    shape: Shape, setting: Setting, compared: Sequence[Implementation] | None = None
) -> BenchmarkCase:
    """Return the implementations, by default all :func:`implementations`, with their truth."""
    if compared is None:
        compared = implementations(shape, setting.device)
    inputs = draw(shape, setting)
    # leaves, of all implementations with the same pieces
    shared: dict[tuple[str, bool], tuple[Tensor, ...]] = {}

    def build(implementation: Implementation) -> Runner:
        call = implementation.make()
        key = (implementation.encoding, implementation.joined)
        if key not in shared:
            values = implementation.pieces(inputs.v, inputs.e)
            shared[key] = tuple(x.detach().requires_grad_() for x in (inputs.q, inputs.k, *values))
        leaves = shared[key]
        returned = implementation.pieces(inputs.dv, inputs.de)

        def forward() -> tuple[Tensor, ...]:
            with implementation.around():
                return call(*leaves)

        def backward(out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            with implementation.around():
                return torch.autograd.grad(out, leaves, returned)

        def outcome() -> dict[str, Tensor]:
            out = forward()
            dq, dk, *dvalues = backward(out)
            return {
                "out": torch.cat(out, dim=-1),
                "dq": dq,
                "dk": dk,
                "dv": torch.cat(dvalues, dim=-1),
            }

        return Runner(forward, backward, outcome, bytes_of(leaves))

    entries = []
    for implementation in compared:
        make = functools.partial(build, implementation)
        entries.append(CaseEntry(implementation.name, implementation.encoding, make))
    lengths = lengths_of(shape) or (shape.tokens,)
    truth = {}
    for encoding in (BASELINE, "tape"):
        truth[encoding] = functools.partial(attention_truth, inputs, encoding, lengths)
    return BenchmarkCase(entries, truth)


def draw(shape: Shape, setting: Setting) -> AttentionInputs:
    generator = torch.Generator(setting.device).manual_seed(0)
    drawn = []
    for heads in (shape.heads, *3 * [shape.groups], *2 * [shape.heads]):
        size = (shape.batch, shape.tokens, heads, shape.width)
        x_BTHK = torch.randn(size, generator=generator, device=setting.device).to(setting.dtype)
        drawn.append(x_BTHK.transpose(1, 2))
    return AttentionInputs(*drawn)


def attention_truth(inputs: AttentionInputs, encoding: str, lengths: Sequence[int]) -> Truth:
    """Compute the truth by plain matrices in fp64, and the error of the same in the inputs' precision."""
    exact = _by_heads(AttentionInputs(*map(Tensor.double, inputs)), encoding, lengths)
    return expected_from(exact, _by_heads(inputs, encoding, lengths), inputs.q.dtype)


def _by_heads(inputs: AttentionInputs, encoding: str, lengths: Sequence[int]) -> dict[str, Tensor]:
    """Compute plain attention, whose matrix is whole, for one document, head and sequence at a time."""
    batch, heads = inputs.q.shape[:2]
    group = heads // inputs.k.shape[1]
    v = inputs.v
    returned = inputs.dv
    # TAPE attends to the values and to the position states with the same weights
    if encoding != BASELINE:
        v = torch.cat((inputs.v, inputs.e), dim=-1)
        returned = torch.cat((inputs.dv, inputs.de), dim=-1)
    whole = {
        "out": torch.empty_like(returned),
        "dq": torch.zeros_like(inputs.q),
        "dk": torch.zeros_like(inputs.k),
        "dv": torch.zeros_like(v),
    }
    documents = list(itertools.starmap(slice, pairwise([0, *accumulate(lengths)])))
    for row, head, document in itertools.product(range(batch), range(heads), documents):
        mine = (slice(row, row + 1), slice(head, head + 1), document)
        shared = (mine[0], slice(head // group, head // group + 1), document)
        parts = (inputs.q[mine], inputs.k[shared], v[shared])
        leaves = [x.detach().requires_grad_() for x in parts]
        out = plain_attention(*leaves)
        whole["out"][mine] = out.detach()
        dq, dk, dv = torch.autograd.grad(out, leaves, returned[mine])
        whole["dq"][mine] += dq
        whole["dk"][shared] += dk
        whole["dv"][shared] += dv
    return whole


def decode(shape: Shape, setting: Setting) -> BenchmarkCase:
    """Compare one new token over a long cache, forward only: what a step of generation costs.

    The cache holds TAPE's value as the model keeps it, ``[v | e]`` in one tensor; its halves are read as views.
    """
    generator = torch.Generator(setting.device).manual_seed(0)

    def draw(heads: int, tokens: int, width: int) -> Tensor:
        size = (shape.batch, heads, tokens, width)
        return torch.randn(size, generator=generator, device=setting.device).to(setting.dtype)

    q = draw(shape.heads, 1, shape.width)
    k = draw(shape.groups, shape.keys, shape.width)
    wide = draw(shape.groups, shape.keys, 2 * shape.width)
    values = {BASELINE: wide[..., : shape.width].contiguous(), "tape": wide}
    inputs = {encoding: {"q": q, "k": k, "v": value} for encoding, value in values.items()}

    def build(encoding: str, backend: str | None) -> Runner:
        if backend is None:
            return operation(plain_attention, inputs[encoding])
        function = attend(backend)

        def call(q: Tensor, k: Tensor, value: Tensor) -> Tensor:
            return torch.cat(function(q, k, *value.split(shape.width, dim=-1)), dim=-1)

        return operation(call, inputs[encoding])

    names: dict[str | None, str] = {None: "plain matrices"}
    names |= {backend: f"attend {backend}" for backend in DECODING[setting.device.type]}
    entries = []
    for backend, encoding in itertools.product(names, inputs):
        make = functools.partial(build, encoding, backend)
        entries.append(CaseEntry(names[backend], encoding, make))
    truth = {}
    for encoding, of_encoding in inputs.items():
        truth[encoding] = functools.partial(truth_of, plain_attention, of_encoding, setting.dtype)
    return BenchmarkCase(entries, truth)
