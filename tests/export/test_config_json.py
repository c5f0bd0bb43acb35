"""The form of config.json that most engines read: transformers computes the same of it, and what was checked before is
what is written."""

import copy
import math

import pytest
import torch
from transformers import AutoConfig, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tape_ds.engines import forms, table
from tape_ds.export import config_json

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
SIZES = {"hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 1024}
FORMS = {
    "yarn": YARN,
    "attention 1": {**YARN, "attention_factor": 1.0},
    "attention 1.7": {**YARN, "attention_factor": 1.7},
    "exact": {**YARN, "truncate": False},
    "exact, bounds": {**YARN, "truncate": False, "beta_fast": 8.0},
    "linear": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0},
    "theta": {"rope_type": "default", "rope_theta": 5e5},
}


def exported(rope_parameters):
    return config_json.for_engines(
        LlamaConfig(**SIZES, rope_parameters=copy.deepcopy(rope_parameters)).to_dict(), LlamaConfig
    )


@pytest.mark.parametrize("form", FORMS)
def test_transformers_computes_the_same(form):
    rope_parameters = FORMS[form]
    content = exported(rope_parameters)
    one = LlamaRotaryEmbedding(LlamaConfig(**SIZES, rope_parameters=copy.deepcopy(rope_parameters)))
    older = {key: value for key, value in content.items() if key != "rope_parameters"}
    newer = {
        key: value for key, value in content.items() if key not in ("rope_theta", "rope_scaling")
    }
    for spelled in (content, older, newer):
        other = LlamaRotaryEmbedding(LlamaConfig.from_dict(copy.deepcopy(spelled)))
        assert (
            torch.equal(one.inv_freq, other.inv_freq)
            and one.attention_scaling == other.attention_scaling
        )


@pytest.mark.parametrize("attention", [0.5, 1.0, 1.7])
def test_a_factor_on_attention_is_the_ratio_of_two_others(attention):
    """mlx-lm and SGLang read mscale and mscale_all_dim, and no attention_factor."""
    content = exported({**YARN, "attention_factor": attention})
    for written in (content["rope_parameters"], content["rope_scaling"]):
        log = 0.1 * math.log(4.0)
        ratio = (log * written["mscale"] + 1) / (log * written["mscale_all_dim"] + 1)
        assert (
            ratio == pytest.approx(attention, rel=1e-12)
            and written["attention_factor"] == attention
        )
    assert "yarn_attention_twice" in forms.form_of(content).traits
    assert table.computed("mlx-lm", content).result == "right"


def test_the_default_factor_is_not_said_twice():
    default = 0.1 * math.log(4.0) + 1.0
    assert "mscale" not in exported({**YARN, "attention_factor": default})["rope_parameters"]
    assert (
        "mscale" not in exported(YARN)["rope_parameters"]
        and "beta_fast" not in exported(YARN)["rope_parameters"]
    )


def test_bounds_are_named_where_the_ramp_is_not_rounded():
    """onnxruntime-genai's Qwen3 divides by zero without them, and is right with them."""
    assert (
        exported({**YARN, "truncate": False, "beta_fast": 8.0})["rope_scaling"]["beta_fast"] == 8.0
    )
    content = exported({**YARN, "truncate": False}) | {"model_type": "qwen3"}
    assert (content["rope_scaling"]["beta_fast"], content["rope_scaling"]["beta_slow"]) == (
        32.0,
        1.0,
    )
    assert table.computed("onnxruntime-genai", content).result == "right"
    assert (
        table.computed("onnxruntime-genai", exported(YARN) | {"model_type": "qwen3"}).result
        == "refused"
    )


@pytest.mark.parametrize(
    "family", ["olmo2", "gemma2", "gpt_neox", "stablelm", "glm4", "phi3", "deepseek_v3"]
)
def test_families_of_their_own_class_have_both_spellings(family):
    """mlx-lm's classes for most of them read base and scaling of the older keys alone."""
    kind = CONFIG_MAPPING[family]
    native = kind().to_dict()
    content = config_json.for_engines(native, kind)
    assert (
        content["rope_theta"] == content["rope_parameters"]["rope_theta"]
        and "rope_scaling" in content
    )
    assert content["rope_parameters"] == native["rope_parameters"], (
        "their classes may compute more of a key"
    )
    again = kind.from_dict(copy.deepcopy(content)).to_dict()
    assert all(again[name] == value for name, value in native.items())


@pytest.mark.parametrize("family", ["gemma3_text", "olmo3"])
def test_rope_of_each_kind_of_layer_keeps_its_form(family):
    kind = CONFIG_MAPPING[family]
    native = kind().to_dict()
    assert config_json.for_engines(native, kind) == native


def test_a_class_that_reads_something_else_of_the_older_keys_keeps_its_form():
    class Other(LlamaConfig):
        model_type = "other"

        @classmethod
        def from_dict(cls, content, **arguments):
            if content.pop("rope_scaling", None):
                content["rope_parameters"] = {"rope_type": "default", "rope_theta": 1.0}
            return super().from_dict(content, **arguments)

    native = Other(**SIZES, rope_parameters=dict(FORMS["linear"])).to_dict()
    assert config_json.for_engines(native, Other) == native


@pytest.mark.parametrize("changes", [{}, {"qkv_bias": True}, {"qk_norm": True}])
def test_a_plan_has_the_model_type_of_the_folder(changes):
    from tests.models.helpers import tiny_config

    rope_parameters = {**YARN, "original_max_position_embeddings": 16}
    config = tiny_config(encoding="rope", rope_parameters=rope_parameters, **changes)
    wanted = {"qkv_bias": "qwen2", "qk_norm": "qwen3"}.get(next(iter(changes), ""), "llama")
    assert config_json.planned(config)["model_type"] == wanted
    assert config_json.planned(tiny_config(encoding="tape"))["model_type"] == "tape"
    assert config_json.planned(AutoConfig.for_model("olmo2"))["model_type"] == "olmo2"
