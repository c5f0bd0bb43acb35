"""``TapeConfig``: Llama's fields untouched, ours checked, every mistake in one message of ours."""

import pytest
from transformers import AutoConfig, LlamaConfig

from tape_ds import TapeConfig, register
from tape_ds.errors import UserError, command
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


def test_a_folder_gives_back_every_field(tmp_path):
    config = tiny_config(
        rope_parameters=YARN,
        position_options={"rank": 5, "feed_forward": True},
        state_dtype="bfloat16",
        attention_backend="reference",
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    config.save_pretrained(tmp_path)
    register()
    again = AutoConfig.from_pretrained(tmp_path)
    assert type(again) is TapeConfig
    assert again.to_dict() | {"_name_or_path": ""} == config.to_dict()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"position_encoding": "tap"}, "did you mean 'tape'"),
        ({"position_options": {"rnk": 3}}, "did you mean 'rank'"),
        ({"position_options": {"attention_update": "mixed"}}, "mix, scale, off"),
        ({"position_encoding": "rope", "position_options": {"rank": 3}}, "log_scale, nope_layers, random_shift"),
        ({"position_encoding": "bipe_rope"}, "separators = None: not known"),
        ({"position_encoding": "randpe", "position_options": {"max_range": 10}}, "give that or more"),
        ({"position_encoding": "yarn"}, "set rope_parameters.rope_type to yarn or yarn_revised"),
        ({"position_encoding": "yarn", "rope_parameters": LINEAR}, "rope_type is 'linear'"),
        ({"state_dtype": "fp32"}, "float32"),
        ({"attention_backend": "sdp"}, "did you mean 'sdpa'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters.factor"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "original_max_position"),
        ({"rope_parameters": {"rope_type": "su", "factor": 2.0, "rope_theta": 1e4}}, "rope_parameters.rope_type"),
        ({"head_dim": 7}, "even head size"),
        ({"num_key_value_heads": 3}, "does not divide the 4"),
        ({"num_key_value_heads": 0}, "give 1 or more"),
        ({"attention_dropout": 0.1}, "set it to 0"),
        ({"qkv_bias": True, "attention_bias": True}, "together with attention_bias"),
        ({"qkv_bias": True, "mlp_bias": True}, "together with mlp_bias"),
        ({"qkv_bias": True, "qk_norm": True}, "together with qk_norm"),
        ({"qk_norm": True, "mlp_bias": True}, "together with mlp_bias"),
    ],
)
def test_a_mistake_is_a_user_error(changes, words):
    """Not the ``StrictDataclassError`` that transformers' own validation wraps everything in: a traceback for users."""
    with pytest.raises(UserError) as caught:
        tiny_config(**changes)
    assert words in str(caught.value)
    assert len(caught.value.problems) == 1


def test_all_mistakes_come_together():
    with pytest.raises(UserError) as caught:
        tiny_config(
            position_options={"rank": -1},
            state_dtype="half",
            attention_backend="flash3",
            head_dim=9,
            rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 0.5},
        )
    assert {problem.field for problem in caught.value.problems} == {
        "position_options.rank",
        "state_dtype",
        "attention_backend",
        "head_dim",
        "rope_parameters.factor",
    }


def test_a_command_ends_without_a_traceback(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert command(lambda: tiny_config(state_dtype="fp32") and 0)() == 2
    message = capsys.readouterr().err
    assert "state_dtype = 'fp32'" in message
    assert "Traceback" not in message


def test_a_change_after_construction_is_caught_when_saving(tmp_path):
    config = tiny_config()
    config.position_options = {"rank": "many"}
    with pytest.raises(Exception, match="rank"):
        config.save_pretrained(tmp_path)


def test_no_tensor_parallel_plan_is_inherited():
    """Llama's plan would split heads over devices, and heads exchange position states."""
    assert TapeConfig().base_model_tp_plan is None
