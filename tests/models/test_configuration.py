"""``TapeConfig``: Llama's fields untouched, ours checked, every mistake in one message of ours."""

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig

from tape_ds import TapeConfig, TapeForCausalLM
from tape_ds.errors import UserError
from tape_ds.models import sizes
from tests.models.helpers import HEADS, SIZES, tiny_config

FIELDS = {
    name: value
    for name, value in (SIZES | HEADS["gqa"]).items()
    if name in sizes.Fields.__dataclass_fields__
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


def test_defaults_are_llama_s_and_tape():
    config, llama = TapeConfig(), LlamaConfig()
    theirs = llama.to_dict()
    differing = {name for name, value in theirs.items() if getattr(config, name) != value}
    assert differing <= {"model_type", "transformers_version"}
    assert (config.position_encoding, config.position_options) == ("tape", None)
    assert (config.state_dtype, config.attention_backend) == (None, "auto")


@pytest.mark.parametrize(
    "changes, fields",
    [
        ({}, []),
        ({"initializer_range": 1}, []),
        ({"hidden_size": 30}, ["hidden_size"]),
        ({"vocab_size": 61.0}, ["vocab_size"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers"]),
        ({"num_key_value_heads": 3, "head_dim": 7}, ["head_dim", "num_key_value_heads"]),
        ({"initializer_range": 1.5}, ["initializer_range"]),
        (
            {"state_dtype": "half", "attention_backend": "flash3"},
            ["state_dtype", "attention_backend"],
        ),
        ({"position_encoding": "tap"}, ["position_encoding"]),
        ({"position_options": {"rank": 0}}, ["position_options.rank"]),
        ({"rope_parameters": DYNAMIC}, ["rope_parameters.original_max_position_embeddings"]),
        ({"attention_dropout": 0.1}, ["attention_dropout"]),
        ({"qkv_bias": True, "attention_bias": True}, ["qkv_bias"]),
        ({"qk_norm": True, "mlp_bias": True}, ["qk_norm"]),
    ],
)
def test_sizes_are_refused_alike_with_and_without_torch(changes, fields):
    """All problems in one error, and none that transformers' own validation wraps in another."""
    assert [problem.field for problem in sizes.problems(sizes.Fields(**FIELDS | changes))] == fields
    given = FIELDS | changes | {"initializer_range": float(changes.get("initializer_range", 0.02))}
    try:
        TapeConfig(**given)
    except UserError as error:
        assert [problem.field for problem in error.problems] == fields
    except (StrictDataclassError, TypeError):
        assert fields
    else:
        assert not fields


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
