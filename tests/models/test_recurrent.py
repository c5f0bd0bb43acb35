"""Layers that carry a state: what is computed together, which parameters are theirs, and the kernels of packages."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers.models.qwen3_next import modeling_qwen3_next

from tape_ds.attention.document_layout import DocumentLayout, layout_of_ids
from tape_ds.config.sections import Optimization
from tape_ds.methods.prepare import prepare_model
from tape_ds.models import decoder, decoder_configuration, recurrent
from tape_ds.models.flops import decoder_shape, multiply_adds
from tape_ds.training import parameter_groups
from tests.methods.test_methods import settings
from tests.models.tiny_decoders import VOCABULARY, tiny_config

ARGUMENTS = SimpleNamespace(learning_rate=1e-3, weight_decay=0.1)


def built(family, **changes):
    config = decoder_configuration.configure(tiny_config(family, **changes))
    return decoder.class_of(type(decoder.on_meta(config)).native)(config)


def layout(*rows):
    """Rows of documents' lengths; below 0 is padding."""
    ids = [
        [at if size > 0 else -1 for at, size in enumerate(row) for _ in range(abs(size))]
        for row in rows
    ]
    return layout_of_ids(torch.tensor(ids), len(ids[0]))


def test_documents_of_about_the_same_length_are_computed_together():
    """Each once, in order, and with little padding."""
    sizes = [1000, 990, 900, 870, 500, 100, 90, 64, 40, 12, 3]
    documents = layout([*sizes, -50], [4569 + 50])
    groups = recurrent._groups(documents)
    assert [group.places.shape[0] for group in groups] == [1, 3, 1, 1, 2, 2, 2]
    assert [group.real is None for group in groups] == [
        True,
        False,
        True,
        True,
        False,
        False,
        False,
    ]
    real = [group.places if group.real is None else group.places[group.real] for group in groups]
    assert torch.equal(
        torch.cat([each.flatten() for each in real]).sort().values,
        documents.packed.key_order.sort().values,
    )
    assert sum(group.places.numel() for group in groups) < 1.02 * len(documents.packed.key_order)


def test_rows_of_one_length_are_one_call():
    (group,) = recurrent._groups(layout([20, 20, 20], [20, 20, 20]))
    assert group.real is None and group.places.tolist() == torch.arange(120).view(6, 20).tolist()


def test_a_carrier_that_is_not_given_the_documents_does_not_guess():
    """A class that left its mask out would compute a document with the state of the one before it."""
    model = built("lfm2").eval()
    layer = model.model.layers[0]
    forward = layer.forward
    layer.forward = lambda *given, attention_mask=None, **named: forward(
        *given, attention_mask=None, **named
    )
    ids = torch.randint(VOCABULARY, (1, 12))
    model(ids, use_cache=False)
    with pytest.raises(RuntimeError, match="was not given the documents"):
        model(ids, document_ids=torch.arange(12)[None] // 6, use_cache=False)


OF_ATTENTION = {
    "qwen3_5_text": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "lfm2": {"q_proj", "k_proj", "v_proj", "out_proj"},
    "kimi_linear": {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"},
    "nemotron_h": {"q_proj", "k_proj", "v_proj", "o_proj"},
}
RECURRENT = {
    "qwen3_5_text": {"in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"},
    "lfm2": {"in_proj", "out_proj"},
    # a kernel reads the weight of out_proj itself
    "nemotron_h": {"in_proj"},
}


@pytest.mark.parametrize("family", OF_ATTENTION)
def test_adapters_are_on_attention_and_by_choice_on_recurrent_layers(family):
    """Kimi's and LFM2's maps have the same names in both. Never on convolutions, rates and norms."""
    maps = decoder_shape(tiny_config(family)).linear_maps
    chosen = [name for name, of_attention in maps.items() if of_attention]
    assert set(chosen) == OF_ATTENTION[family]
    model = built(family)
    carriers = tuple(recurrent.carriers(model))
    trained = prepare_model(
        "lora", model, settings(lora_targets=chosen, train_position=False, train_norms=False)
    ).names
    assert trained and not any(f"{path}." in name for name in trained for path in carriers)
    if family not in RECURRENT:
        return
    assert {
        name.removeprefix("recurrent.") for name in maps if name.startswith("recurrent.")
    } == RECURRENT[family]
    model = built(family)
    trained = prepare_model(
        "lora", model, settings(lora_targets=list(maps), train_position=False, train_norms=False)
    ).names
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)
    inside = {
        name.split(".lora_")[0].rpartition(".")[2]
        for name in trained
        for path in carriers
        if f"{path}." in name
    }
    assert inside == RECURRENT[family]


def test_a_left_out_map_is_refused_by_peft_too():
    """peft names the two of whose families it knows."""
    with pytest.raises(ValueError, match="out_proj"):
        get_peft_model(built("nemotron_h"), LoraConfig(target_modules=["out_proj"]))


@pytest.mark.parametrize("family", ["qwen3_next", "kimi_linear", "nemotron_h", "lfm2"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_rates_and_convolutions_do_not_decay(family, method):
    """A convolution has three dimensions, Kimi's rates four."""
    maps = decoder_shape(tiny_config(family)).linear_maps
    targets = [name for name, of_attention in maps.items() if of_attention]
    model = prepare_model(
        method, built(family), settings(lora_targets=targets, train_position=False)
    ).model
    groups = {
        group.kind: set(group.parameters)
        for group in parameter_groups.divide(model, ARGUMENTS, Optimization())
    }
    decays = groups[parameter_groups.MATRICES]
    assert not [name for name in decays if "conv" in name.split(".")[-2] or "norm" in name]
    assert not [name for name in decays if name.endswith(("A_log", "dt_bias", ".D"))]
    if method == "full":
        carrier = next(iter(recurrent.carriers(model)))
        assert any(name.startswith(carrier) for name in decays)
        assert any(name.startswith(carrier) for name in groups[parameter_groups.VECTORS])


def test_recurrent_layers_do_not_grow_with_the_square_of_the_length():
    """Their work was counted as attention's."""
    config = tiny_config("qwen3_5_text")
    assert decoder_shape(config).windows == (None,)
    twice = multiply_adds(config, 2000) - 2 * multiply_adds(config, 1000)
    assert twice == pytest.approx(2 * 2 * 4 * 16 * 500 * 1000)


def stubbed(monkeypatch):
    """The module of Qwen3-Next as it is with the packages for GPUs, which compute each document alone."""
    called = []

    def alone(function, borders, **tensors):
        pieces = [
            function(**{name: each[:, begin:end] for name, each in tensors.items()})
            for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)
        ]
        return torch.cat(pieces, dim=1)

    def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, activation=None):
        called.append("causal_conv1d_fn")
        borders = torch.nn.functional.pad(seq_idx[0].bincount().cumsum(0), (1, 0))
        plain = modeling_qwen3_next.causal_conv1d_fn
        rows = alone(lambda x: plain(x.mT, weight, bias, activation=activation).mT, borders, x=x.mT)
        return rows.mT

    def chunk_gated_delta_rule(
        query,
        key,
        value,
        g,
        beta,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        cu_seqlens,
    ):
        called.append("chunk_gated_delta_rule")
        plain = modeling_qwen3_next.torch_chunk_gated_delta_rule
        named = {"query": query, "key": key, "value": value, "g": g, "beta": beta}
        return alone(
            lambda **each: plain(**each, use_qk_l2norm_in_kernel=True)[0], cu_seqlens, **named
        ), None

    packages = {"fla": [chunk_gated_delta_rule], "causal_conv1d": [causal_conv1d_fn]}
    for name, functions in packages.items():
        package = ModuleType(name)
        package.__spec__ = importlib.util.spec_from_loader(name, None)
        for function in functions:
            setattr(package, function.__name__, function)
        monkeypatch.setitem(sys.modules, name, package)
    name = "transformers.models.qwen3_next.modeling_stubbed"
    spec = importlib.util.spec_from_file_location(name, modeling_qwen3_next.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module, called


@torch.no_grad()
def test_kernels_of_packages_get_one_row_and_its_borders(monkeypatch):
    """As they are on a GPU: all documents of all rows, without padding."""
    config = tiny_config("qwen3_next")
    config._attn_implementation = "tape_ds"
    plain = modeling_qwen3_next.Qwen3NextGatedDeltaNet(config, 0)
    module, called = stubbed(monkeypatch)
    recurrent.missing_packages.cache_clear()
    assert recurrent.missing_packages(module.Qwen3NextGatedDeltaNet) == []
    fast = module.Qwen3NextGatedDeltaNet(config, 0)
    fast.load_state_dict(plain.state_dict())
    for layer in (plain, fast):
        recurrent.separate_documents(nn.ModuleList([layer]))
    documents = layout([7, 5, -4, 24], [-3, 20, 17])
    mask = recurrent.numbered(documents)
    hidden = torch.randn(2, 40, 64)
    expected = plain(hidden_states=hidden, attention_mask=mask)
    # torch without CUDA has no such tensor
    monkeypatch.setattr(recurrent, "_in_groups", recurrent._in_one_row)
    torch.testing.assert_close(
        fast(hidden_states=hidden, attention_mask=mask), expected, rtol=0, atol=1e-6
    )
    assert called == ["causal_conv1d_fn", "chunk_gated_delta_rule"]
    recurrent.missing_packages.cache_clear()


def test_the_run_s_output_names_what_is_missing():
    described = recurrent.described([modeling_qwen3_next.Qwen3NextGatedDeltaNet])
    assert (
        "split at documents' borders, by torch alone (causal-conv1d, flash-linear-attention not installed)"
        in described
    )


def test_a_layout_of_no_documents_is_computed_as_it_is():
    assert isinstance(layout([5, 5]), DocumentLayout)
    assert (
        recurrent.numbered(layout([5, 5], [-2, 8]))
        == torch.tensor([[2] * 5 + [3] * 5, [0] * 2 + [3] * 8])
    ).all()
