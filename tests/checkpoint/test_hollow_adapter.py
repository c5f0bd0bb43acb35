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
from tape_ds.models.files import weight_files
from tape_ds.models.files.tensor_rows import LoadedRows, StoredRows
from tape_ds.models.model_weights import StoredWeights

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 90,
}


@pytest.fixture
def base(tmp_path):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapted(base, tmp_path):
    """A function that saves an adapter of random numbers, and returns its folder and its merge by peft."""

    def make(**options):
        options = {
            "r": 2,
            "target_modules": ["q_proj", "down_proj"],
            "init_lora_weights": False,
        } | options
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


@pytest.mark.parametrize(
    "options", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head", "embed_tokens"]}]
)
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


def test_parameters_that_are_one_stay_one(base):
    """A head that is tied to embeddings which were trained whole."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))
    hollow.empty(model, torch.float32)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        target_modules=["q_proj"],
        modules_to_save=["embed_tokens"],
        ensure_weight_tying=True,
    )
    wrapped = hollow_adapter.wrap(model, config)
    stored = {}
    for name, parameter in wrapped.named_parameters(remove_duplicate=False):
        if "lora" in name or "modules_to_save.default" in name:
            stored[name.replace(".default", "").replace(".modules_to_save", "")] = torch.ones(
                parameter.shape
            )
    adapter, missing, unexpected = hollow_adapter.load(wrapped, LoadedRows(stored))
    assert missing == [] and unexpected == []
    inner = adapter.model.get_base_model()
    head, embeddings = inner.get_output_embeddings(), inner.get_input_embeddings()
    assert head.modules_to_save["default"].weight is embeddings.modules_to_save["default"].weight
    assert adapter.sources[head.modules_to_save["default"].weight].name.endswith(
        "lm_head.weight"
    ), "the last, as if copied"
