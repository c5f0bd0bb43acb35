"""What every encoding promises of files, names and devices: a checkpoint holds parameters and nothing else."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tape_ds import TapeForCausalLM, register
from tests.models.helpers import ENCODINGS, HEADS, SIZES, rounding, tiny_config, tiny_model, tokens

register()

# What an encoding may add to a Llama's parameters, after its layer's number.
OWN = {
    "t5": {"position.table.weight"},
    "fire": {
        f"position.network.{name}"
        for name in ("curvature", "multiplier", "weight_in", "bias_in", "weight_out", "bias_out")
    },
    "cope": {"position.places.weight"},
    "fox": {"position.gates.weight", "position.gates.bias"},
    "pope": {"position.phases.delta"},
    "repo": {f"position.predictor.{name}" for name in ("gate", "content", "final")},
    "tape": {f"position.{name}.weight" for name in ("attend", "gate", "expand", "contract")},
}
WHOLE = {
    "bipe_rope": {"model.encoding.intra.weight"},
    "bipe_alibi": {"model.encoding.intra.weight"},
}


def llama_names():
    sizes = {
        name: value for name, value in SIZES.items() if name in LlamaConfig.__dataclass_fields__
    }
    return set(LlamaForCausalLM(LlamaConfig(**(sizes | HEADS["gqa"]))).state_dict())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_parameters_have_a_llama_s_names_and_their_own(encoding):
    """Tables that follow from the configuration are in no checkpoint."""
    model = tiny_model(encoding=encoding)
    names = set(model.state_dict())
    assert names == {name for name, _ in model.named_parameters()} and not list(model.buffers())
    own = names - llama_names()
    assert llama_names() < names or not own
    base = encoding.split(" ")[0]
    in_layers = {name.split(".", 3)[3] for name in own if ".layers." in name}
    allowed = OWN.get(base, set())
    split = {name.replace(".cos.", ".").replace(".sin.", ".") for name in in_layers}
    assert split <= allowed and (encoding != base or in_layers == allowed)
    whole = (
        {"model.encoding.digits.weight"} if encoding.endswith(" abacus") else WHOLE.get(base, set())
    )
    assert {name for name in own if ".layers." not in name} == whole


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_saved_model_is_the_model(tmp_path, encoding):
    model, ids = tiny_model(encoding=encoding), tokens(2, 20)
    model.save_pretrained(tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == set(model.state_dict())
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert type(again) is TapeForCausalLM and again.config.to_dict() == {
        **model.config.to_dict(),
        **named(again),
    }
    assert torch.equal(again(ids).logits, model(ids).logits)


def named(model):
    """What loading adds to a configuration."""
    return {
        name: model.config.to_dict()[name] for name in ("_name_or_path", "architectures", "dtype")
    }


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_another_window_loads_and_generates_past_it(tmp_path, encoding):
    """Nothing in a checkpoint has the length it was trained at; without a table there is no last position."""
    model = tiny_model(encoding=encoding)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, max_position_embeddings=32)
    assert again.config.max_position_embeddings == 32
    ids = tokens(1, 9)
    out = again.generate(ids, max_new_tokens=70, min_new_tokens=70, do_sample=False, pad_token_id=0)
    assert out.shape == (1, 79)
    # another draw, and other factors
    if encoding != "randpe" and not encoding.endswith(" log scale"):
        torch.testing.assert_close(
            again(ids).logits, model(ids).logits, rtol=0, atol=rounding(model, ids)
        )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_model_can_be_planned_on_the_meta_device(encoding):
    """Memory estimates and sharded loading need sizes without weights; no table may follow onto that device."""
    with torch.device("meta"):
        model = TapeForCausalLM(tiny_config(encoding=encoding))
    assert all(weight.is_meta for weight in model.parameters())
    real = tiny_model(encoding=encoding)
    model.load_state_dict(real.state_dict(), assign=True)
    ids = tokens(1, 9)
    assert torch.equal(model.eval()(ids).logits, real(ids).logits)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_initialisation_fills_every_parameter(encoding):
    """Once from the model's own seed, the same each time; no memory is left as it was found."""
    models = []
    for filler in (float("nan"), 7.0):
        model = TapeForCausalLM(tiny_config(encoding=encoding))
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(filler)
        torch.manual_seed(5)
        for module in model.modules():
            model._init_weights(module)
        models.append(model)
    for (name, first), second in zip(
        models[0].named_parameters(), models[1].parameters(), strict=True
    ):
        assert torch.equal(first, second), name
