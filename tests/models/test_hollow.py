"""A model without its weights has everything else of the loaded one."""

import pytest
import torch
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM

from tape_ds.models import hollow

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 90,
}


@pytest.fixture(params=["llama", "tied", "gemma"])
def folder(request, tmp_path):
    """A saved model, and its class."""
    torch.manual_seed(0)
    if request.param == "gemma":
        model = GemmaForCausalLM(GemmaConfig(**SIZES, num_key_value_heads=2, head_dim=8))
    else:
        model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=request.param == "tied"))
    model.save_pretrained(tmp_path)
    return tmp_path, type(model)


def test_it_becomes_the_loaded_model_when_weights_are_put_in(folder):
    """Buffers, ties and class are there; its parameters take one number each."""
    place, kind = folder
    loaded = kind.from_pretrained(place).eval()
    model = hollow.hollow(kind.from_pretrained(place, device_map={"": "meta"}))
    assert (
        type(model) is kind
        and not model.training
        and model.num_parameters() == loaded.num_parameters()
    )
    owners = hollow.owners(model)
    assert owners.keys() == dict(loaded.named_parameters()).keys()
    assert sum(
        getattr(*places[0]).untyped_storage().nbytes() for places in owners.values()
    ) == 4 * len(owners)
    for name, places in owners.items():
        assert hollow.is_hollow(getattr(*places[0]))
        hollow.put(places, loaded.get_parameter(name).detach())
    ids = torch.arange(30)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded(ids).logits)


def test_some_parameters_get_memory(folder):
    place, kind = folder
    model = hollow.hollow(kind.from_pretrained(place, device_map={"": "meta"}))
    name = "model.layers.1.self_attn.q_proj.weight"
    before = model.get_parameter(name)
    hollow.materialise(
        model,
        {name, "no such parameter"},
        lambda _: torch.full((32, 32), 3.0, dtype=torch.bfloat16),
    )
    held = model.get_parameter(name)
    assert held is before and held.dtype == torch.float32 and bool((held == 3).all())
    assert [
        each for each, parameter in model.named_parameters() if not hollow.is_hollow(parameter)
    ] == [name]
    hollow.empty(model, torch.float16)
    assert all(map(hollow.is_hollow, model.parameters())) and model.dtype == torch.float16
