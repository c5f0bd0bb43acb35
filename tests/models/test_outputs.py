"""What a caller may ask of a forward call: hidden states, weights, embeddings, fewer logits; and saving, compiling."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tape_ds import TapeForCausalLM, register
from tests.models.helpers import randomised, rounding, tiny_config, tiny_model, tokens


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
def test_attention_weights_are_the_ones_used(asked):
    """The weights times the values give the block's own output."""
    model = tiny_model(attention_backend="reference")
    if asked == "attn_implementation":
        model = randomised(
            TapeForCausalLM._from_config(tiny_config(), attn_implementation="eager")
        ).eval()
    values = []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(
            lambda module, arguments, output: values.append(output)
        )
    attended = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(
            lambda module, arguments, output: attended.append(output[0])
        )
    out = model(tokens(2, 7), output_attentions=True)
    for weights, value, expected, layer in zip(
        out.attentions, values, attended, model.model.layers, strict=True
    ):
        assert weights.shape == (2, 4, 7, 7) and (weights.triu(1) == 0).all()
        v = value.view(2, 7, 2, 8).transpose(1, 2).repeat_interleave(2, 1)
        mine = layer.self_attn.o_proj((weights @ v).transpose(1, 2).flatten(2))
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)


def test_attention_weights_are_refused_where_there_are_none():
    with pytest.raises(ValueError, match="attn_implementation='eager'"):
        tiny_model()(tokens(1, 4), output_attentions=True)


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
    for kept, places in (
        (1, [8]),
        (4, [5, 6, 7, 8]),
        (0, list(range(9))),
        (torch.tensor([2, 7]), [2, 7]),
    ):
        torch.testing.assert_close(
            model(ids, logits_to_keep=kept).logits,
            every[:, places],
            rtol=0,
            atol=rounding(model, ids),
        )


def test_masks_of_the_wrong_shape_are_refused():
    for name, shape in (
        ("attention_mask", (1, 1, 6, 6)),
        ("attention_mask", (1, 5)),
        ("document_ids", (1, 4)),
    ):
        with pytest.raises(
            ValueError, match=f"4D masks are not supported|{name} has {shape[1]} columns"
        ):
            tiny_model()(tokens(1, 6), **{name: torch.ones(shape, dtype=torch.int32)})


def test_trained_weights_are_never_reset_on_load(tmp_path):
    """One missing key must not let initialisation run over its neighbours in the same module (or over anything)."""
    register()
    model = tiny_model()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".position." in name:
                weight.fill_(7.0)
    model.save_pretrained(tmp_path)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True)
    )
    file = tmp_path / "model.safetensors"
    for absent in (
        "model.layers.0.position.expand.weight",
        "model.layers.1.position.attend.weight",
        "lm_head.weight",
    ):
        tensors = load_file(file)
        del tensors[absent]
        (tmp_path / "part").mkdir(exist_ok=True)
        model.config.save_pretrained(tmp_path / "part")
        save_file(tensors, tmp_path / "part" / "model.safetensors", metadata={"format": "pt"})
        part, info = AutoModelForCausalLM.from_pretrained(
            tmp_path / "part", output_loading_info=True
        )
        assert info["missing_keys"] == {absent}
        for name, weight in part.named_parameters():
            if name != absent:
                assert torch.equal(weight, model.get_parameter(name)), name
        if ".position." in absent:
            assert (part.get_parameter(absent) == 0).all()


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
def test_a_whole_model_is_exported(encoding):
    """By ``torch.export``: operators of ours are nodes of the graph, which computes other tokens as the model does."""
    model, ids = tiny_model(encoding=encoding, num_hidden_layers=2), tokens(1, 8)
    exported = torch.export.export(model, (), {"input_ids": ids, "use_cache": False}, strict=False)
    assert any("tape_ds.rotate" in str(node.target) for node in exported.graph.nodes)
    other = tokens(1, 8)
    found = exported.module()(input_ids=other, use_cache=False).logits
    torch.testing.assert_close(found, model(other).logits, rtol=0, atol=rounding(model, ids))
