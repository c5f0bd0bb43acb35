"""A toy shape for each group, for ``python -m benchmarks --toys``: everything runs, and its times mean nothing.

On a CPU nothing is compiled, which would take longer than all else.
"""

from dataclasses import replace

import torch

from benchmarks import models, shapes
from benchmarks.groups import GROUPS, Group

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
models.SIZES |= {"tiny": TINY, "small": TINY | {"hidden_size": 256, "max_position_embeddings": 256}}


def _shapes(model: shapes.BenchmarkModel, width: int, cache: int) -> dict[str, shapes.Shape]:
    """Of every group, with heads of this width."""
    attention = shapes.AttentionShape(model.batch, 4, 2, model.tokens, width)
    packed = replace(model, documents=3)
    operations: dict[str, shapes.Shape] = {
        "attention": attention,
        "packed": replace(attention, documents=3),
        "launches": shapes.Sweep("forward", replace(attention, heads=1, groups=1)),
        "decode": shapes.Decode(model.batch, 4, 2, cache, width),
        "position_mix": shapes.Mix(model.batch, 4, 2, max(5, width // 4), model.tokens, width),
        "rotate": attention,
        "layer": replace(packed, layers=1),
        "recipe": packed,
    }
    return {name: operations.get(name, model) for name in GROUPS}


TOYS = {
    "cpu": _shapes(shapes.BenchmarkModel("tiny", 3, 1, 40), 8, 50),
    "cuda": _shapes(shapes.BenchmarkModel("small", 3, 2, 256), 64, 1_000),
}
"""By kind of device and group; CUDA's are what its kernels take."""


def groups() -> dict[str, Group]:
    """Return all of them, each with its toy shape alone."""
    return {name: group._replace(cuda=[TOYS["cuda"][name]], cpu=[TOYS["cpu"][name]]) for name, group in GROUPS.items()}


def without_compiler() -> None:
    """Have ``torch.compile`` refuse."""

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("no compiler for toys")

    torch.compile = refuse  # type: ignore[assignment]
