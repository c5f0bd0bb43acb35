"""Parts of the readers that need no engine: stand-ins, tables of angles, and TurboMind's frequencies."""

import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tools.engines import environments

LENGTH = 64


@pytest.fixture
def readers(monkeypatch):
    """A function that imports a file of the readers."""
    monkeypatch.syspath_prepend(str(environments.READERS))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_stand_ins_take_what_kernels_are_used_for(readers):
    readers("stand_ins").install("no_such_kernels", "json.no_such_part")
    kernels = readers("no_such_kernels.jit")

    @kernels.compiled
    def function():
        return 3

    @kernels.compiled(fast=True)
    class Plain:
        value = 4

    class Layer(kernels.Base):
        def __init__(self, size):
            self.size = size

    assert function() == 3 and Plain.value == 4 and Layer(5).size == 5
    assert readers("json.no_such_part.of_it").anything
    with pytest.raises(ModuleNotFoundError):
        readers("json.other_part")


def test_a_table_that_ends_gives_zeros(readers):
    """A kernel reads other memory there; cosine 1 or sine 0 would look like an angle."""
    angles = torch.arange(10.0)[:, None] * torch.tensor([1.0, 0.1])

    def turn(positions, query, key):
        cosines = angles.cos()[positions]
        sines = angles.sin()[positions]
        first = query[:, :2] * cosines - query[:, 2:] * sines
        second = query[:, 2:] * cosines + query[:, :2] * sines
        return torch.cat([first, second], -1), key

    rotary = SimpleNamespace(cos_sin_cache=angles, forward_native=turn, forward=None)
    found = readers("tables").angles(rotary, 12, 4)
    assert np.allclose(found[:10], torch.cat([angles.cos(), angles.sin()], -1))
    assert not found[10:].any()


@pytest.mark.parametrize(
    ("kind", "fields", "more"),
    [
        ("default", {}, {}),
        ("linear", {"factor": 4.0}, {}),
        ("dynamic", {"factor": 4.0}, {}),
        (
            "llama3",
            {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": LENGTH,
            },
            {
                "llama3_low_freq_factor": 1.0,
                "llama3_high_freq_factor": 4.0,
                "llama3_original_max_position_embeddings": LENGTH,
            },
        ),
        (
            "yarn",
            {"factor": 4.0, "original_max_position_embeddings": LENGTH},
            {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0},
        ),
    ],
)
def test_the_kernel_of_turbomind_computes_each_scaling_of_the_length_before_it(
    readers, kind, fields, more
):
    """So that what differs in an engine is what its kernel is given; for YaRN, the length after scaling."""
    kernel = readers("turbomind_kernel")
    rope = {"rope_type": kind, "rope_theta": 1e4, **fields}
    # twice the length, so that dynamic scales
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=1, max_position_embeddings=LENGTH, rope_parameters=rope
    )
    module = LlamaRotaryEmbedding(config)
    module(torch.zeros(1), torch.arange(2 * LENGTH)[None])
    given = SimpleNamespace(
        base=1e4, dim=64, factor=fields.get("factor", 1.0), max_position_embeddings=LENGTH, **more
    )
    assert np.allclose(kernel.frequencies(given, kind, 2 * LENGTH), module.inv_freq, rtol=1e-5)
    if kind == "yarn":
        given.max_position_embeddings = 4 * LENGTH
        assert not np.allclose(
            kernel.frequencies(given, kind, 2 * LENGTH), module.inv_freq, rtol=0.1
        )
