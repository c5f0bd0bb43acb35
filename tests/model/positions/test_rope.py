"""``rope``: angles that no cast, device or offset can spoil."""

import copy
import pickle

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from tape_ds.model import positions
from tests.model.helpers import tiny_config, tiny_model

PARAMETERS = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0, "original_max_position_embeddings": 32},
}


def distinct_rows(start):
    return len(np.unique(start[0, 0].float().numpy(), axis=0))


@pytest.mark.parametrize("name", PARAMETERS)
def test_rotation_is_llama_s(name):
    """The halves of our state, put into transformers' own rotation, give the same queries and keys."""
    config = tiny_config(encoding="rope", rope_parameters=PARAMETERS[name])
    q, k = torch.randn(2, 4, 20, 8), torch.randn(2, 2, 20, 8)
    places = torch.arange(20)[None]
    llama = LlamaConfig(hidden_size=32, num_attention_heads=4, head_dim=8, rope_parameters=dict(PARAMETERS[name]))
    expected = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(llama)(q, places))
    start = positions.build(config).start(places)
    assert start.dtype == torch.float32 and start.shape == (1, 1, 20, 8)
    for mine, theirs in zip(positions.build_layer(config, 0).rotate(q, k, start, None), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", PARAMETERS)
def test_far_angles_are_exact(name):
    """An fp32 angle is off by 4e-3 at position 131,071; ours is the correctly computed cosine, rounded once."""
    config = tiny_config(encoding="rope", head_dim=128, rope_parameters=PARAMETERS[name])
    encoding = positions.build(config)
    far = torch.tensor([[131_071, 131_070, 1_000_003]])
    angles = far.numpy().astype(np.longdouble)[0][:, None] * encoding.frequencies.astype(np.longdouble)
    exact = np.concatenate((np.cos(angles), np.sin(angles)), -1) * encoding.factor
    assert np.abs(encoding.start(far)[0, 0].numpy() - exact).max() < 1.3e-7


@pytest.mark.parametrize("length", [8_192, 131_072])
@pytest.mark.parametrize("cast", ["bfloat16", "half"])
@pytest.mark.parametrize("encoding", ["rope", "mix"])
def test_no_cast_merges_positions(encoding, cast, length):
    """Frequencies in a buffer would be rounded by an engine's cast: 897 of 8,192 positions would stay distinct."""
    model = tiny_model(encoding=encoding, head_dim=64)
    places = torch.arange(length)[None]
    before = model.model.encoding.start(places)
    after = getattr(model, cast)().model.encoding.start(places)
    assert after.dtype == torch.float32
    assert torch.equal(before, after)
    assert distinct_rows(after) == length


def test_a_cast_of_the_frequencies_would_merge_positions():
    """The counter-test: what the test above would see if frequencies and positions went through bf16."""
    frequencies = torch.from_numpy(positions.build(tiny_config(encoding="rope", head_dim=64)).frequencies).bfloat16()
    angles = torch.arange(8_192).bfloat16()[:, None] * frequencies
    assert distinct_rows(angles.float().cos()[None, None]) < 1_000


def test_angles_survive_copies_and_have_no_state():
    model = tiny_model(encoding="rope")
    encoding = model.model.encoding
    assert not list(encoding.buffers()) and not list(encoding.parameters())
    places = torch.arange(50)[None]
    for twin in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert torch.equal(twin.start(places), encoding.start(places))


def test_positions_may_jump_and_differ_by_row():
    """PoSE: every token's angles follow from its own position alone."""
    encoding = positions.build(tiny_config(encoding="rope"))
    places = torch.tensor([[0, 1, 500, 501], [7, 3, 3, 131_071]])
    start = encoding.start(places)
    assert start.shape == (2, 1, 4, 8)
    for row in range(2):
        for column in range(4):
            alone = encoding.start(places[row : row + 1, column : column + 1])
            assert torch.equal(start[row, :, column], alone[0, :, 0])


def test_rope_is_only_a_rotation():
    """Nothing rides along with the value and no state grows."""
    layer = positions.build_layer(tiny_config(encoding="rope"), 0)
    value = torch.randn(1, 2, 3, 8)
    assert layer.carry(torch.randn(1, 1, 3, 8), None, value) is None
    assert layer.after_attention(None, None) is None
    assert layer.after_mlp(torch.randn(1, 1, 3, 8), None, value) is None
    assert not list(layer.parameters())
