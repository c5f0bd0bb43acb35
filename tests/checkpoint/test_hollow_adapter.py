"""An adapter is in memory only while a layer is merged, however many layers there are."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from tape_ds.checkpoint import hollow_adapter
from tape_ds.checkpoint.adapted_weights import AdaptedWeights
from tape_ds.checkpoint.peft_adapter import put_on_hollow
from tape_ds.models import hollow
from tape_ds.models.loading import weight_files
from tape_ds.models.loading.tensor_rows import LoadedRows, StoredRows
from tape_ds.models.model_weights import StoredWeights

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 90}


@pytest.fixture
def base(tmp_path):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapted(base, tmp_path):
    """A function that saves an adapter of random numbers, and returns its folder and its merge by peft."""

    def make(**options):
        options = {"r": 2, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False} | options
        model = get_peft_model(LlamaForCausalLM.from_pretrained(base), LoraConfig(**options))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape))
        model.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter", model.merge_and_unload().state_dict()

    return make


def weights_of(base):
    on_meta = LlamaForCausalLM.from_pretrained(base, device_map={"": "meta"})
    return StoredWeights(on_meta, StoredRows(weight_files.files(base)))


def put_on(base, folder):
    def attach(model, read):
        return put_on_hollow(model, read, folder, "the base", "the adapter")

    return attach


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head", "embed_tokens"]}])
def test_a_merge_holds_one_layer_s_adapter(base, adapted, options):
    """It was held twice, all of it: of four times the layers a merge took half as much memory again."""
    folder, expected = adapted(**options)
    attached = []

    def attach(model, read):
        attached.append(put_on(base, folder)(model, read))
        return attached[0]

    weights = AdaptedWeights(weights_of(base), attach, "model", "the adapter")
    stored = load_file(folder / "adapter_model.safetensors")
    of_files = attached[0].sources
    assert {source.name for source in of_files.values()} == stored.keys()
    assert all(hollow.is_hollow(each) for each in of_files)
    for name in weights.names():
        assert torch.equal(weights.rows(name), expected[name]), name
        for layer in weights._layers.values():
            assert all(map(hollow.is_hollow, layer._layer.parameters())), f"let go of after {name}"


def test_tensors_that_peft_makes_others_of_are_loaded(base, adapted, monkeypatch):
    """As it does for the experts of a mixture, of one matrix each in older files."""
    folder, expected = adapted()
    load = hollow_adapter.set_peft_model_state_dict

    def changed(model, tensors, **options):
        return load(model, {name: tensor * 1 for name, tensor in tensors.items()}, **options)

    monkeypatch.setattr(hollow_adapter, "set_peft_model_state_dict", changed)
    weights = AdaptedWeights(weights_of(base), put_on(base, folder), "model", "the adapter")
    for name in weights.names():
        assert torch.equal(weights.rows(name), expected[name]), name
