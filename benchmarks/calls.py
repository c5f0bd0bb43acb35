"""Every way to call attention that is compared: torch's backends one by one, and the model's.

Each is a function of queries, keys and a value; what it refuses, it refuses by its own error. All are causal, with the
queries at the end of the keys; those that take :class:`PackedDocuments` compute each document alone.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.shapes import AttentionShape, document_lengths
from tape_ds.attention.attend import attend as attend_in_model
from tape_ds.attention.document_layout import DocumentLayout, layout_of_packed_sequences

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
ON_CPU = ("flash", "math")
REPEATING = ("efficient",)  # backends that refuse grouped queries: their keys and values are repeated, as a user would
# Most scores for those with whole T x S matrices: on a GPU 12 heads of 8 sequences of 1,024
# tokens, on a CPU of one
MATRIX_ENTRIES = {"cuda": 1 << 28, "cpu": 1 << 24}


@dataclass(frozen=True)
class PackedDocuments:
    """The documents packed into each sequence, and where they begin."""

    lengths: tuple[int, ...]
    device: torch.device

    @functools.cache  # noqa: B019 (a run has few)
    def cu_seqlens(self, sequences: int) -> Tensor:
        """Return the starts of all sequences' documents, and their end."""
        return torch.tensor([0, *accumulate(self.lengths * sequences)], dtype=torch.int32, device=self.device)


def documents_of(shape: AttentionShape, device: torch.device) -> PackedDocuments | None:
    """Return None where every sequence is one text."""
    return None if shape.documents is None else PackedDocuments(document_lengths(shape.tokens, shape.documents), device)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with whole matrices in the tensors' precision; causal, queries at the end of the keys."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if q.shape[2] > 1:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1 + k.shape[2] - q.shape[2])
        scores = scores.masked_fill(unseen, -torch.inf)
    return scores.softmax(dim=-1) @ v


def sdpa(name: str) -> Callable[..., Tensor]:
    """Return torch's attention, limited to one backend."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        _refuse_large_matrices(q, k, name == "math")
        grouped = q.shape[1] != k.shape[1]
        if grouped and name in REPEATING:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
            grouped = False
        with sdpa_kernel(SDPA[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=grouped)

    return call


def attend(backend: str, documents: PackedDocuments | None = None) -> Callable[..., tuple[Tensor, ...]]:
    """Return the model's attention by one of its backends; as in its layers, the layout of documents is ready."""

    @functools.cache
    def layout(sequences: int) -> DocumentLayout | None:
        if documents is None:
            return None
        lengths = documents.lengths
        return layout_of_packed_sequences(documents.cu_seqlens(sequences), max(lengths), sequences, sum(lengths))

    def call(q: Tensor, k: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        _refuse_large_matrices(q, k, backend == "reference")
        return attend_in_model(q, k, values, layout=layout(len(q)), backend=backend)

    return call


def _refuse_large_matrices(q: Tensor, k: Tensor, whole: bool) -> None:
    entries = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    if whole and entries > MATRIX_ENTRIES[q.device.type]:
        raise ValueError(f"not asked: its matrix of scores would have {entries:.1e} entries")
