"""``TapeConfig``: Llama's fields untouched, ours checked, every mistake in one message of ours."""

import pytest
from transformers import LlamaConfig

from tape_ds import TapeConfig, TapeForCausalLM
from tape_ds.errors import UserError
from tests.models.helpers import tiny_config

LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e5, "factor": 2.0, "original_max_position_embeddings": 32}


def test_defaults_are_llama_s_and_tape():
    config, llama = TapeConfig(), LlamaConfig()
    theirs = llama.to_dict()
    differing = {name for name, value in theirs.items() if getattr(config, name) != value}
    assert differing <= {"model_type", "transformers_version"}
    assert (config.position_encoding, config.position_options) == ("tape", None)
    assert (config.state_dtype, config.attention_backend) == (None, "auto")


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"position_options": {"rnk": 3}}, "did you mean 'rank'"),
        ({"position_encoding": "yarn", "rope_parameters": LINEAR}, "rope_type is 'linear'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters.factor"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "original_max_position"),
        ({"attention_dropout": 0.1}, "set it to 0"),
        ({"qkv_bias": True, "attention_bias": True}, "together with attention_bias"),
        ({"qkv_bias": True, "qk_norm": True}, "together with qk_norm"),
        ({"qk_norm": True, "mlp_bias": True}, "together with mlp_bias"),
    ],
)
def test_a_mistake_is_a_user_error(changes, words):
    """Not the ``StrictDataclassError`` that transformers' own validation wraps everything in."""
    with pytest.raises(UserError) as caught:
        tiny_config(**changes)
    assert words in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_change_after_construction_is_caught_when_saving(tmp_path):
    config = tiny_config()
    config.position_options = {"rank": "many"}
    with pytest.raises(Exception, match="rank"):
        config.save_pretrained(tmp_path)


def test_no_plan_of_llama_is_inherited():
    """Its tensor-parallel plan would split heads over devices, and heads exchange position states."""
    assert TapeConfig().base_model_tp_plan is None
    model = TapeForCausalLM(tiny_config())
    assert not model.supports_pp_plan and not model.supports_tp_plan
