"""Toy sizes for every group, and no compiler: each would take longer than all else."""

import pytest
import torch

from benchmarks import models, shapes
from benchmarks.groups import GROUPS

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
MODEL = shapes.Model("tiny", 3, 1, 40)
TOYS = {
    "attention": shapes.Attention(1, 4, 2, 40, 8),
    "decode": shapes.Decode(1, 4, 2, 50, 8),
    "position_mix": shapes.Mix(1, 4, 2, 5, 40, 8),
    "rotate": shapes.Attention(1, 4, 2, 40, 8),
    "layer": MODEL._replace(layers=1),
    "step": MODEL,
    "generate": MODEL,
    "recipe": MODEL,
    "formulation": MODEL,
    "table4": MODEL,
    "levers": MODEL,
}


GPU_MODEL = shapes.Model("small", 3, 2, 256)
GPU_TOYS = {
    "attention": shapes.Attention(2, 4, 2, 256, 64),
    "decode": shapes.Decode(2, 4, 2, 1_000, 64),
    "position_mix": shapes.Mix(2, 4, 2, 16, 256, 64),
    "rotate": shapes.Attention(2, 4, 2, 256, 64),
    "layer": GPU_MODEL._replace(layers=1),
    "step": GPU_MODEL,
    "generate": GPU_MODEL,
    "recipe": GPU_MODEL,
    "formulation": GPU_MODEL,
    "table4": GPU_MODEL,
    "levers": GPU_MODEL,
}


@pytest.fixture
def gpu_toys(monkeypatch):
    """A shape for each group that GPU kernels take; compiled rivals are compiled."""
    monkeypatch.setitem(models.SIZES, "small", TINY | {"hidden_size": 256, "max_position_embeddings": 256})
    return GPU_TOYS


@pytest.fixture
def toys(monkeypatch):
    """The groups with one toy shape each on a CPU."""

    def no_compiler(*arguments, **options):
        raise RuntimeError("no compiler in tests")

    monkeypatch.setattr(torch, "compile", no_compiler)
    monkeypatch.setitem(models.SIZES, "tiny", TINY)
    for name, group in list(GROUPS.items()):
        monkeypatch.setitem(GROUPS, name, group._replace(shapes={"cpu": [TOYS[name]], "cuda": []}))
    return TOYS
