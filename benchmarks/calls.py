"""Every way to call attention that is compared: torch's backends one by one, the libraries, FlexAttention, ours.

Each is a function of queries, keys and a value; what it refuses, it refuses by its own error. All are causal, with the
queries at the end of the keys; those that take :class:`PackedDocuments` compute each document alone.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.shapes import AttentionShape, document_lengths
from tape_ds.kernels import jit
from tape_ds.kernels.tape_attention import document_borders, tape_attention
from tape_ds.model.attention.attend import attend as attend_in_model
from tape_ds.model.attention.borders import Borders, borders_of_packed_sequences
from tape_ds.model.attention.flash import RELEASES, Release, installed
from tape_ds.model.attention.flex import SMALL_BLOCKS

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
ON_CPU = ("flash", "math")
REPEATING = ("efficient",)
"""Backends that refuse grouped queries: their keys and values are repeated, as a user would."""
LIBRARIES = {release.name: release for release in sorted(RELEASES)}
MATRIX_ENTRIES = {"cuda": 1 << 28, "cpu": 1 << 24}
"""Those that hold the whole T x S matrices are asked up to this many scores: on a GPU 12 heads of 8 sequences of 1,024
tokens, on a CPU of one."""


@dataclass(frozen=True)
class PackedDocuments:
    """The documents packed into each sequence, in every form that somebody asks for."""

    lengths: tuple[int, ...]
    device: torch.device

    @functools.cache  # noqa: B019 (a run has few)
    def cu_seqlens(self, sequences: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Borders of all sequences' documents, one sequence after another."""
        return torch.tensor([0, *accumulate(self.lengths * sequences)], dtype=dtype, device=self.device)

    @functools.cache  # noqa: B019
    def ids(self, sequences: int) -> Tensor:
        """int32 [sequences, T]."""
        each = torch.arange(len(self.lengths), dtype=torch.int32)
        return each.repeat_interleave(torch.tensor(self.lengths)).to(self.device).expand(sequences, -1)


def documents_of(shape: AttentionShape, device: torch.device) -> PackedDocuments | None:
    """None: every sequence is one text."""
    return None if shape.documents is None else PackedDocuments(document_lengths(shape.tokens, shape.documents), device)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """By torch's own matrices in the tensors' precision; causal, queries at the end of the keys."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if q.shape[2] > 1:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1 + k.shape[2] - q.shape[2])
        scores = scores.masked_fill(unseen, -torch.inf)
    return scores.softmax(dim=-1) @ v


def sdpa(name: str) -> Callable[..., Tensor]:
    """torch's attention by one backend and no other."""

    def call(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        _refuse_large_matrices(q, k, name == "math")
        grouped = q.shape[1] != k.shape[1]
        if grouped and name in REPEATING:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
            grouped = False
        with sdpa_kernel(SDPA[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, scale=scale, enable_gqa=grouped)

    return call


def by_library(release: Release, documents: PackedDocuments | None) -> Callable[..., Tensor]:
    """``flash_attn_func`` of one of Dao's packages, which takes [B, T, H, K], or its form for documents, [N, H, K]."""
    if not installed(release):
        raise ModuleNotFoundError(f"{release.name} is not installed")
    module = importlib.import_module(release.module)

    def call(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        rows = [x.transpose(1, 2) for x in (q, k, v)]
        if documents is None:
            out = module.flash_attn_func(*rows, softmax_scale=scale, causal=True)
        else:
            borders = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), documents.cu_seqlens(len(q)))
            longest = dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), max(documents.lengths))
            rows = [x.flatten(0, 1) for x in rows]
            out = module.flash_attn_varlen_func(*rows, **borders, **longest, softmax_scale=scale, causal=True)
        out = out[0] if isinstance(out, tuple) else out
        return (out if documents is None else out.unflatten(0, (len(q), -1))).transpose(1, 2)

    return call


def fla(documents: PackedDocuments | None) -> Callable[..., Tensor]:
    """flash-linear-attention's softmax attention in Triton, which takes [B, T, H, K]."""
    parallel_attn = importlib.import_module("fla.ops.attn").parallel_attn

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        borders = None if documents is None else documents.cu_seqlens(len(q), torch.int64)
        rows = [x.transpose(1, 2) for x in (q, k, v)]
        if borders is not None:  # it wants one sequence
            rows = [x.flatten(0, 1)[None] for x in rows]
        out = parallel_attn(*rows, cu_seqlens=borders)
        return out.reshape(len(q), -1, *out.shape[2:]).transpose(1, 2)

    return call


def stacked(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """With the value [v; e] as twice the rows, and queries and keys copied for them."""
    call = make()
    return lambda q, k, v: call(*(torch.cat(2 * [x.transpose(1, 2)]).transpose(1, 2) for x in (q, k)), v)


def padded(make: Callable[[], Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """With queries and keys as wide as the value; the scale stays that of the true width."""
    call = make()

    def padded_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wider = v.shape[-1] - q.shape[-1]
        return call(F.pad(q, (0, wider)), F.pad(k, (0, wider)), v, scale=q.shape[-1] ** -0.5)

    return padded_call


def halves(make: Callable[[], Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Return one call for each half of the value's columns, read where they lie."""
    call = make()
    return lambda q, k, v: torch.cat([call(q, k, half) for half in v.chunk(2, dim=-1)], dim=-1)


def flex(
    shape: AttentionShape, documents: PackedDocuments | None, device: torch.device, small: bool
) -> Callable[..., Tensor]:
    """FlexAttention, compiled; its block mask is made once, as a model would for all of its layers."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    ids = None if documents is None else documents.ids(1)[0]

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) if ids is None else (key <= query) & (ids[query] == ids[key])

    mask = create_block_mask(seen, None, None, shape.tokens, shape.tokens, device=str(device))
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    options = SMALL_BLOCKS if small else None
    return functools.partial(compiled, block_mask=mask, enable_gqa=shape.heads != shape.groups, kernel_options=options)


def ours(documents: PackedDocuments | None, deterministic: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """Our Triton kernel, of value and state; the documents' borders are made once, as a model does for its layers."""
    borders = functools.cache(
        lambda sequences: None if documents is None else document_borders(documents.ids(sequences))
    )

    def call(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        return tape_attention(q, k, v, e, document_ids=borders(len(q)), deterministic=deterministic)

    return call


def attend(backend: str, documents: PackedDocuments | None = None) -> Callable[..., tuple[Tensor, ...]]:
    """Return the model's own entry, of one value or several, by one of its backends; borders are ready, as for its
    layers."""
    if backend == "triton":
        refuse_interpreter()

    @functools.cache
    def borders(sequences: int) -> Borders | None:
        if documents is None:
            return None
        lengths = documents.lengths
        return borders_of_packed_sequences(documents.cu_seqlens(sequences), max(lengths), sequences, sum(lengths))

    def call(q: Tensor, k: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        _refuse_large_matrices(q, k, backend == "reference")
        return attend_in_model(q, k, values, borders=borders(len(q)), backend=backend)

    return call


def refuse_interpreter() -> None:
    """Raise ValueError where Triton would interpret its kernels: that time means nothing."""
    if jit.INTERPRETED:
        raise ValueError("Triton's interpreter is on (TRITON_INTERPRET=1): its times mean nothing")


def _refuse_large_matrices(q: Tensor, k: Tensor, whole: bool) -> None:
    entries = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    if whole and entries > MATRIX_ENTRIES[q.device.type]:
        raise ValueError(f"not asked: its matrix of scores would have {entries:.1e} entries")
