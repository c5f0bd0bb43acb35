"""``rope``: angles that no cast, device or offset can spoil, and a base that may follow the text's length."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from transformers import DynamicCache, LlamaConfig, StaticCache
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from tape_ds.encodings import base, registry
from tests.models.helpers import rounding, tiny_config, tiny_model, tokens

WINDOW = 32
PARAMETERS = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e5,
        "factor": 4.0,
        "original_max_position_embeddings": WINDOW,
    },
}
DYNAMIC = {
    "rope_type": "dynamic",
    "rope_theta": 1e4,
    "factor": 2.0,
    "original_max_position_embeddings": WINDOW,
}


def text(documents=None, offset=0, past=None, ids=None):
    return base.TokenContext(ids, documents, offset, past)


@pytest.mark.parametrize("name", PARAMETERS)
def test_rotation_is_llama_s(name):
    """The halves of our state, put into transformers' own rotation, give the same queries and keys."""
    config = tiny_config(encoding="rope", rope_parameters=PARAMETERS[name])
    q, k = torch.randn(2, 4, 20, 8), torch.randn(2, 2, 20, 8)
    places = torch.arange(20)[None]
    llama = LlamaConfig(
        hidden_size=32, num_attention_heads=4, head_dim=8, rope_parameters=dict(PARAMETERS[name])
    )
    expected = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(llama)(q, places))
    start = registry.build(config).start(places[..., None])
    assert start.dtype == torch.float32 and start.shape == (1, 1, 20, 8)
    for mine, theirs in zip(
        registry.build_layer(config, 0).rotate(q, k, start, None), expected, strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "encoding, cast, length", [("rope", "bfloat16", 32_768), ("tape", "half", 8_192)]
)
def test_no_cast_merges_positions(encoding, cast, length):
    """Frequencies in a buffer would be rounded by an engine's cast: 897 of 8,192 positions would stay distinct."""
    model = tiny_model(encoding=encoding, head_dim=64)
    places = torch.arange(length)[None, :, None]
    before = model.model.encoding.start(places)
    after = getattr(model, cast)().model.encoding.start(places)
    assert after.dtype == torch.float32
    assert torch.equal(before, after)
    assert len(np.unique(after[0, 0].numpy(), axis=0)) == length


def test_copies_on_a_device_do_not_travel():
    """Loaded with ``map_location``, they would be on another device than their keys say."""
    frequencies = registry.build(tiny_config(encoding="rope")).frequencies
    frequencies.placed[torch.device("cuda", 0)] = torch.ones(4)
    for other in (copy.deepcopy(frequencies), pickle.loads(pickle.dumps(frequencies))):
        assert other.placed == {} and np.array_equal(other.array, frequencies.array)
    assert frequencies.placed


@pytest.mark.gpu
def test_a_compiled_forward_keeps_nothing_of_its_graph():
    """What it kept would be the graph's memory, and its presence would have the model compiled again."""
    model, ids, compiled = tiny_model(encoding="rope").cuda(), tokens(1, 8).cuda(), []
    torch.compiler.reset()
    forward = torch.compile(model, backend=lambda graph, _: compiled.append(graph) or graph.forward)
    for _ in range(2):
        found = forward(ids, use_cache=False).logits
    assert len(compiled) == 1 and not model.model.encoding.frequencies.placed
    torch.testing.assert_close(found, model(ids).logits, rtol=1e-5, atol=1e-5)
    assert model.model.encoding.frequencies.placed


def dynamic(**changes):
    return registry.build(
        tiny_config(encoding="rope", head_dim=64, rope_parameters=DYNAMIC | changes)
    )


def published_start(length, places):
    """Cosines and sines at transformers' own dynamic frequencies for a text of ``length`` tokens."""
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=2, head_dim=64, rope_parameters=dict(DYNAMIC)
    )
    config.max_position_embeddings = WINDOW
    frequencies, factor = ROPE_INIT_FUNCTIONS["dynamic"](
        config, torch.device("cpu"), seq_len=length
    )
    assert factor == 1.0
    angles = places[..., None].double() * frequencies.double()
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()[:, None]


@pytest.mark.parametrize("length", [1, WINDOW, WINDOW + 1, 1000])
def test_dynamic_angles_are_transformers_at_that_length(length):
    """Inside the window it is plain RoPE; the fp32 frequencies of transformers are off by 1e-7 of the angle."""
    encoding, places = dynamic(), torch.arange(length)[None]
    start = encoding.start(encoding.positions_for(places, text()))
    torch.testing.assert_close(
        start, published_start(length, places), rtol=0, atol=1e-6 * max(length, 10)
    )
    plain = registry.build(tiny_config(encoding="rope", head_dim=64)).start(places[..., None])
    assert torch.equal(start, plain) == (length <= WINDOW)


def test_rows_of_different_lengths_have_their_own_base():
    """Padding plays no part, on whichever side and whatever its position ids are."""
    encoding = dynamic()
    lengths, T = [70, 40, 20, 70], 70
    documents, places = torch.full((4, T), -1), torch.full((4, T), 99_999)
    for row, length in enumerate(lengths):
        real = slice(T - length, T) if row % 2 else slice(0, length)
        documents[row, real], places[row, real] = 0, torch.arange(length)
    start = encoding.start(encoding.positions_for(places, text(documents)))
    for row, length in enumerate(lengths):
        alone = encoding.start(encoding.positions_for(torch.arange(length)[None], text()))
        assert torch.equal(start[row : row + 1, :, documents[row] >= 0], alone), row


def logits_with_the_base_of(model, prompt, ids):
    """A full pass over ``ids`` with the base that a text of ``prompt`` tokens has."""
    model.model.encoding.positions_for = lambda positions_BT, text: torch.stack(
        (positions_BT, torch.full_like(positions_BT, prompt)), dim=-1
    )
    try:
        return model(ids, use_cache=False).logits
    finally:
        del model.model.encoding.positions_for


@pytest.mark.parametrize("cache, prompt", [("dynamic", 5), ("static", 20)])
def test_the_prompt_fixes_the_base_while_decoding(cache, prompt):
    """Cached keys keep the angles they were rotated by: queries that came later must use the same base."""
    model, ids = tiny_model(encoding="rope dynamic"), tokens(2, 30)  # its window is 8
    past = (
        DynamicCache() if cache == "dynamic" else StaticCache(config=model.config, max_cache_len=32)
    )
    parts = []
    with torch.no_grad():
        for start, stop in itertools.pairwise([0, prompt, prompt + 1, 25, 30]):
            parts.append(model(ids[:, start:stop], past_key_values=past).logits)
        whole, other = (logits_with_the_base_of(model, length, ids) for length in (prompt, 30))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=rounding(model, ids))
    assert (whole - other).abs().max() > 1e-3, "the bases of the two lengths differ"


def test_an_empty_static_cache_has_no_length():
    """A compiled call knows only as a tensor that a used cache is empty again: the zeros in it are no length, and the
    prompt has its own."""
    encoding, places = dynamic(), torch.arange(70)[None]
    emptied = torch.zeros(1, 100, 2, dtype=torch.long)
    own = encoding.positions_for(places, text())
    assert torch.equal(
        encoding.positions_for(places, text(offset=torch.tensor(0), past=emptied)), own
    )
    kept = text(offset=torch.tensor(70), past=torch.cat((own, emptied[:, 70:]), dim=1))
    assert encoding.positions_for(torch.tensor([[70]]), kept).tolist() == [[[70, 70]]]


@pytest.mark.parametrize("name", ["rope", "tape", "xpos"])
def test_dynamic_scaling_takes_the_promises_back(name):
    config = tiny_config(encoding=name, rope_parameters=DYNAMIC)
    encoding = registry.build(config)
    assert (encoding.translation_invariant, encoding.cache_exact, encoding.remembers) == (
        False,
        False,
        2,
    )
