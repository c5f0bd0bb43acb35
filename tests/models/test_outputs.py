"""What a caller may ask of a forward call: hidden states, weights, embeddings, fewer logits; and saving, compiling."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM

from tape_ds import TapeConfig, TapeForCausalLM, TapeModel
from tests.models.helpers import HEADS, randomised, rounding, tiny_config, tiny_model, tokens


def test_hidden_states_are_the_blocks_own():
    """Embedding, then what each block but the last returned, then the final norm's output, as in every Llama."""
    model, ids = tiny_model(), tokens(2, 9)
    seen = [model.model.embed_tokens(ids)]
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, arguments, output: seen.append(output[0]))
    out = model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == model.config.num_hidden_layers + 1
    for mine, expected in zip(out.hidden_states[:-1], seen, strict=False):
        assert torch.equal(mine, expected)
    assert torch.equal(out.hidden_states[-1], model.model.norm(seen[-1]))
    assert torch.equal(model.lm_head(out.hidden_states[-1]), out.logits)
    assert model(ids).hidden_states is None


@pytest.mark.parametrize("asked", ["attention_backend", "attn_implementation"])
@pytest.mark.parametrize("heads", HEADS)
def test_attention_weights_are_the_ones_used(heads, asked):
    """Each row sums to one over its past, and the weights times the values give the block's own output."""
    if asked == "attention_backend":
        model = tiny_model(heads, attention_backend="reference")
    else:
        model = TapeForCausalLM._from_config(tiny_config(heads), attn_implementation="eager")
        model = randomised(model).eval()
    values = []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda module, arguments, output: values.append(output))
    attended = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(lambda module, arguments, output: attended.append(output[0]))
    out = model(tokens(2, 7), output_attentions=True)
    assert len(out.attentions) == 3
    sizes = HEADS[heads]
    for weights, value, expected, layer in zip(out.attentions, values, attended, model.model.layers, strict=True):
        assert weights.shape == (2, sizes["num_attention_heads"], 7, 7)
        assert (weights.triu(1) == 0).all()
        group = sizes["num_attention_heads"] // sizes["num_key_value_heads"]
        v = value.view(2, 7, -1, 8).transpose(1, 2).repeat_interleave(group, 1)
        mine = layer.self_attn.o_proj((weights @ v).transpose(1, 2).flatten(2))
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)


def test_attention_weights_are_refused_where_there_are_none():
    """Returning None, or another backend's weights, would be believed."""
    model = tiny_model()
    with pytest.raises(ValueError, match="attn_implementation='eager'"):
        model(tokens(1, 4), output_attentions=True)
    with pytest.raises(ValueError, match="attention_backend='reference'"):
        model.generate(tokens(1, 4), max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)


def test_embeddings_in_place_of_ids():
    model, ids = tiny_model(), tokens(2, 9)
    embeddings = model.get_input_embeddings()(ids)
    assert torch.equal(model(inputs_embeds=embeddings).logits, model(ids).logits)
    for arguments in ({}, {"input_ids": ids, "inputs_embeds": embeddings}):
        with pytest.raises(ValueError, match="exactly one"):
            model(**arguments)


def test_logits_to_keep():
    model, ids = tiny_model(), tokens(2, 9)
    every = model(ids).logits
    for kept, places in ((1, [8]), (4, [5, 6, 7, 8]), (0, list(range(9))), (torch.tensor([2, 7]), [2, 7])):
        torch.testing.assert_close(
            model(ids, logits_to_keep=kept).logits, every[:, places], rtol=0, atol=rounding(model, ids)
        )


def test_a_tuple_when_asked():
    model, ids = tiny_model(), tokens(1, 5)
    loss, logits = model(ids, labels=ids, return_dict=False)[:2]
    out = model(ids, labels=ids)
    assert torch.equal(loss, out.loss) and torch.equal(logits, out.logits)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"attention_mask": torch.ones(1, 1, 6, 6)}, "4D masks are not supported"),
        ({"attention_mask": torch.ones(1, 5)}, "attention_mask has 5 columns"),
        ({"document_ids": torch.zeros(1, 4, dtype=torch.int32)}, "document_ids has 4 columns"),
    ],
)
def test_masks_of_the_wrong_shape_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        tiny_model()(tokens(1, 6), **arguments)


@pytest.mark.slow
def test_a_sharded_folder_loads_in_a_fresh_process(tmp_path):
    """``tape_ds.register()`` is all that another program's script needs."""
    kinds = {"tied": {"tie_word_embeddings": True}, "untied": {}, "bipe": {"encoding": "bipe_rope"}}
    for name, changes in kinds.items():
        model, ids = tiny_model(**changes), tokens(1, 9)
        model.save_pretrained(tmp_path / name, max_shard_size="10KB")
        assert len(list((tmp_path / name).glob("*.safetensors"))) > 3
        save_file({"ids": ids, "logits": model(ids).logits.detach()}, tmp_path / f"{name}.safetensors")
    script = f"""
from pathlib import Path
import torch, tape_ds
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
tape_ds.register()
for name in {list(kinds)}:
    folder = Path({str(tmp_path)!r}, name)
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    assert type(model) is tape_ds.TapeForCausalLM and not model.training
    assert type(AutoModel.from_pretrained(folder)) is tape_ds.TapeModel
    expected = load_file(folder.with_suffix(".safetensors"))
    assert torch.equal(model(expected["ids"]).logits, expected["logits"])
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (name == "tied")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_trained_weights_are_never_reset_on_load(tmp_path):
    """One missing key must not let initialisation run over its neighbours in the same module (or over anything)."""
    model = tiny_model()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".position." in name:
                weight.fill_(7.0)
    model.save_pretrained(tmp_path)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))
    file = tmp_path / "model.safetensors"
    for absent in ("model.layers.0.position.expand.weight", "model.layers.1.position.attend.weight", "lm_head.weight"):
        tensors = load_file(file)
        del tensors[absent]
        (tmp_path / "part").mkdir(exist_ok=True)
        model.config.save_pretrained(tmp_path / "part")
        save_file(tensors, tmp_path / "part" / "model.safetensors", metadata={"format": "pt"})
        part, info = AutoModelForCausalLM.from_pretrained(tmp_path / "part", output_loading_info=True)
        assert info["missing_keys"] == {absent}
        for name, weight in part.named_parameters():
            if name != absent:
                assert torch.equal(weight, model.get_parameter(name)), name
        if ".position." in absent:
            assert (part.get_parameter(absent) == 0).all()


def test_a_body_alone_loads_the_same_weights(tmp_path):
    model, ids = tiny_model(), tokens(1, 6)
    model.save_pretrained(tmp_path)
    body = AutoModel.from_pretrained(tmp_path)
    assert type(body) is TapeModel
    assert torch.equal(body(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_the_vocabulary_can_grow():
    model, ids = tiny_model(tie_word_embeddings=True), tokens(1, 6)
    before = model(ids).logits
    model.resize_token_embeddings(70, mean_resizing=False)
    assert model(ids).logits.shape[-1] == 70
    torch.testing.assert_close(model(ids).logits[..., :61], before)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
@pytest.mark.parametrize("encoding", ["rope", "tape"])
def test_a_training_step_compiles_without_a_break(encoding):
    """Forward, loss and backward in one graph each: every operator of ours passes through."""
    model, ids = tiny_model(encoding=encoding, num_hidden_layers=2).train(), tokens(2, 33)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    outcomes = []
    for way in (model, compiled):
        model.zero_grad()
        loss = way(ids, labels=ids, use_cache=False).loss
        loss.backward()
        outcomes.append([loss, *(weight.grad.clone() for weight in model.parameters())])
    for eager, mine in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, eager, rtol=0, atol=1e-6)


@pytest.mark.parametrize("encoding", ["rope", "tape"])
def test_a_model_can_be_exported(encoding):
    model, ids = tiny_model(encoding=encoding, num_hidden_layers=2), tokens(1, 8)
    exported = torch.export.export(model, (), {"input_ids": ids, "use_cache": False}, strict=False)
    names = {str(node.target) for node in exported.graph.nodes}
    assert any("tape_ds.rotate" in name for name in names)
    other = tokens(1, 8)
    torch.testing.assert_close(
        exported.module()(input_ids=other, use_cache=False).logits,
        model(other).logits,
        rtol=0,
        atol=rounding(model, ids),
    )


def test_a_saved_configuration_is_read_back(tmp_path):
    config = tiny_model(encoding="tape scale", state_dtype="float32", attention_backend="sdpa").config
    config.save_pretrained(tmp_path)
    again = TapeConfig.from_pretrained(tmp_path)
    for name in ("position_encoding", "position_options", "state_dtype", "attention_backend", "rope_parameters"):
        assert getattr(again, name) == getattr(config, name)
    assert isinstance(TapeForCausalLM(again).model.layers[0].position, torch.nn.Module)
