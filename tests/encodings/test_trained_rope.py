"""An extension continues from the RoPE that the weights were trained with, or is refused; never from another one."""

import json
import math

import numpy as np
import pytest

from tape_ds.encodings import scaling, trained_rope
from tape_ds.errors import UserError
from tape_ds.models.loading import extendable
from tests.encodings.published_angles import FORMULAS

HEAD = 64
LENGTH, WINDOW = "max_position_embeddings", "original_max_position_embeddings"
LINEAR = {"type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    WINDOW: 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}

# What published models name: rope_scaling of config.json, its other fields, and what the weights know by it.
BASES = {
    "unscaled": ({}, {LENGTH: 4096}, 4096, 4096),
    "larger theta": ({}, {LENGTH: 32768, "rope_theta": 1e6}, 32768, 32768),
    "linear, window named": (
        {"rope_type": "linear", "factor": 4.0, WINDOW: 4096},
        {LENGTH: 16384},
        16384,
        4096,
    ),
    "linear, Vicuna": (LINEAR, {LENGTH: 4096, "max_sequence_length": 16384}, 16384, 4096),
    "linear, long length named": (
        LINEAR,
        {LENGTH: 16384, "max_sequence_length": 16384},
        16384,
        4096,
    ),
    "linear, open": (LINEAR, {LENGTH: 16384}, 16384, None),
    "dynamic": ({"type": "dynamic", "factor": 2.0}, {LENGTH: 4096}, 4096, 4096),
    "yarn": ({**YARN, WINDOW: 32768}, {LENGTH: 131072, "rope_theta": 1e6}, 131072, 32768),
    "yarn, first length kept": (
        {**YARN, WINDOW: 32768},
        {LENGTH: 32768, "rope_theta": 1e6},
        131072,
        32768,
    ),
    "yarn, window outside": (YARN, {LENGTH: 64, WINDOW: 16}, 64, 16),
    "yarn, open": (YARN, {LENGTH: 16384}, 16384, None),
    # trained to twice 8 x 8,192
    "llama3": (
        LLAMA3,
        {LENGTH: 131072, "rope_theta": 5e5},
        131072,
        16384,
    ),
    "yarn x1": ({"rope_type": "yarn", "factor": 1.0, WINDOW: 4096}, {LENGTH: 4096}, 4096, 4096),
}


def content(name, form=4):
    """A Llama's ``config.json`` in the form of transformers 4 or 5."""
    rope, fields, *_ = BASES[name]
    sizes = {
        "hidden_size": 2 * HEAD,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
    }
    config = {"model_type": "llama", "vocab_size": 8, **sizes, "rope_theta": 1e4, **fields}
    if form == 4:
        return {**config, "rope_scaling": rope or None}
    rope = {
        "rope_type": rope.get("type", "default"),
        **rope,
        "rope_theta": config.pop("rope_theta"),
    }
    return {**config, "rope_parameters": rope}


def own(name):
    return trained_rope.read(content(name), name)


def angles(rope_type, theta, factor=1.0, window=None):
    """Frequencies by the papers' formulas, of a text within the window."""
    return np.array(
        [FORMULAS[rope_type](theta, j, HEAD, factor, window or 1, 0) for j in range(HEAD // 2)]
    )


@pytest.mark.parametrize("name", BASES)
def test_both_published_forms_and_transformers_are_read_alike(name, tmp_path):
    """The dry run has a config.json of either form, the run what transformers made of it."""
    _, _, native, window = BASES[name]
    found = [trained_rope.read(content(name, form), name) for form in (4, 5)]
    for form in (4, 5):
        (tmp_path / "config.json").write_text(json.dumps(content(name, form)))
        config = extendable.read(tmp_path)
        assert config.max_position_embeddings == native
        found.append(trained_rope.read(config.to_dict(), name))
    assert all(each == found[0] for each in found)
    assert (found[0].native_length, found[0].window) == (native, window)


def of_unscaled(theta, window):
    """Twice the native length by each type, from angles that are unscaled within the window."""
    factor = {name: (name, theta, 2.0) for name in ("linear", "ntk")}
    from_window = {name: (name, theta, 2.0, window) for name in ("yarn", "yarn_revised")}
    return {
        **factor,
        **from_window,
        "dynamic": ("dynamic", theta, 1.0, 1),
        "theta": ("default", 1e7),
    }


# By base: for what is asked, the formula of the extension to twice the native length; refused otherwise.
EXTENDED = {
    "unscaled": {
        **of_unscaled(1e4, 4096),
        "auto": ("yarn", 1e4, 2.0, 4096),
        "nothing": ("default", 1e4),
    },
    "larger theta": {
        **of_unscaled(1e6, 32768),
        "auto": ("yarn", 1e6, 2.0, 32768),
        "nothing": ("default", 1e6),
    },
    # transformers' dynamic leaves texts within its window unscaled, and a factor of 1 scales nothing
    "dynamic": {
        **of_unscaled(1e4, 4096),
        **dict.fromkeys(("auto", "nothing"), ("dynamic", 1e4, 1.0, 1)),
    },
    "yarn x1": {
        **of_unscaled(1e4, 4096),
        **dict.fromkeys(("auto", "nothing"), ("yarn", 1e4, 2.0, 4096)),
    },
}
GROWN = {
    "linear, window named": ("linear", 1e4, 8.0),
    "linear, Vicuna": ("linear", 1e4, 8.0),
    "linear, long length named": ("linear", 1e4, 8.0),
    "yarn": ("yarn", 1e6, 8.0, 32768),
    "yarn, first length kept": ("yarn", 1e6, 8.0, 32768),
    "yarn, window outside": ("yarn", 1e4, 8.0, 16),
    "llama3": ("llama3", 5e5, 16.0, 8192),
}
EXTENDED |= {
    name: dict.fromkeys((formula[0], "auto", "nothing"), formula) for name, formula in GROWN.items()
}
ASKED = {
    **{
        name: {"rope_type": name}
        for name in ("linear", "ntk", "dynamic", "yarn", "yarn_revised", "auto")
    },
    "theta": {"rope_type": "default", "rope_theta": 1e7},
    "llama3": {"rope_type": "llama3"},
    "nothing": {},
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", BASES)
def test_an_extension_has_these_frequencies_or_is_refused(name, asked):
    rope, change = own(name), ASKED[asked]
    target = 2 * rope.native_length
    problems = list(trained_rope.check_change(rope, change, target))
    formula = EXTENDED.get(name, {}).get(asked)
    if formula is None:
        assert problems
        return
    assert not problems
    found = trained_rope.extended(rope, change, target)
    assert scaling.check(found) == []
    frequencies, _ = scaling.frequencies(found, HEAD)
    np.testing.assert_allclose(frequencies, angles(*formula), rtol=1e-13)


@pytest.mark.parametrize("inside", [True, False])
def test_a_base_frequency_is_named_where_config_json_has_it(inside):
    """One outside of ``rope_scaling`` was named as one inside."""
    scaled = {"rope_type": "linear", "factor": 4.0, WINDOW: 4096} | (
        {"rope_theta": 0.5} if inside else {}
    )
    config = {LENGTH: 16384, "rope_scaling": scaled} | ({} if inside else {"rope_theta": 0.5})
    with pytest.raises(
        UserError,
        match=r"has rope_scaling\.rope_theta = 0.5" if inside else r"has rope_theta = 0.5",
    ):
        trained_rope.read(config, "model")


def test_a_longrope_keeps_its_own_parameters():
    """A window or a factor of the recipe replaced the model's without a word."""
    factors = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, WINDOW: 4096}
    config = {"model_type": "phi3", LENGTH: 131072, "hidden_size": 256, "num_attention_heads": 4}
    rope = trained_rope.read(config | {"rope_scaling": {"type": "longrope", **factors}}, "phi3")
    assert list(trained_rope.check_change(rope, {"rope_type": "auto", WINDOW: 4096}, 131072)) == []
    for key, value in ((WINDOW, 8192), ("factor", 64.0)):
        (problem,) = trained_rope.check_change(rope, {"rope_type": "auto", key: value}, 131072)
        assert (problem.field, problem.remedy) == (
            f"rope_parameters.{key}",
            f"rope_parameters.{key}: null",
        )


def test_the_length_that_config_json_leaves_open_is_asked_for():
    """deepseek-coder names the length after linear x4, Vicuna that before; factors differ by four."""
    rope, target = own("linear, open"), 65536
    (problem,) = trained_rope.check_change(rope, {"rope_type": "linear"}, target)
    assert problem.field == f"rope_parameters.{WINDOW}"
    for window, factor in ((4096, 16.0), (16384, 4.0)):
        answer = {"rope_type": "linear", WINDOW: window}
        assert not list(trained_rope.check_change(rope, answer, target))
        assert trained_rope.extended(rope, answer, target)["factor"] == factor
    # nothing to extend
    assert not list(trained_rope.check_change(rope, {"rope_type": "linear"}, 16384))


def test_yarn_without_a_window_is_asked_for_in_config_json():
    """transformers takes max_position_embeddings; every frequency depends on it, so no recipe may name another."""
    rope = own("yarn, open")
    assert rope.parameters[WINDOW] == 16384
    (problem,) = trained_rope.check_change(rope, {"rope_type": "yarn"}, 32768)
    assert "config.json" in problem.remedy
    answered = trained_rope.read({**content("yarn, open"), WINDOW: 4096}, "answered")
    assert trained_rope.extended(answered, {}, 32768)["factor"] == 8.0


@pytest.mark.parametrize(
    "name, change, field",
    [
        ("linear, open", {"factor": 2.0}, "factor"),
        ("linear, Vicuna", {"rope_type": "linear", "factor": 3.5}, "factor"),
        ("llama3", {"rope_type": "llama3", "factor": 4.0}, "factor"),
        ("llama3", {"rope_type": "llama3", "factor": 8.0}, "factor"),  # of less than the target
        ("yarn", {"rope_type": "yarn", WINDOW: 4096}, WINDOW),
        ("linear, open", {"rope_type": "linear", WINDOW: 2048}, WINDOW),
        ("linear, open", {"rope_type": "linear", WINDOW: 32768}, WINDOW),
        ("unscaled", {"rope_type": "yarn", WINDOW: 8192}, WINDOW),
        ("unscaled", {"rope_type": "llama3"}, "low_freq_factor"),
    ],
)
def test_values_that_the_base_contradicts_are_refused(name, change, field):
    rope = own(name)
    fields = [
        problem.field for problem in trained_rope.check_change(rope, change, 2 * rope.native_length)
    ]
    assert f"rope_parameters.{field}" in fields


def test_a_model_extended_twice_counts_from_its_first_window():
    """4k to 16k, then to 64k, through this project's folders and through an exported one; by NTK and then YaRN."""
    first = trained_rope.extended(own("unscaled"), {"rope_type": "linear"}, 16384)
    for model_type in ("tape", "llama"):
        config = {**content("unscaled"), "model_type": model_type, "max_position_embeddings": 16384}
        again = trained_rope.read({**config, "rope_scaling": first}, "again")
        assert trained_rope.extended(again, {"rope_type": "linear"}, 65536)["factor"] == 16.0
    ntk = trained_rope.extended(own("unscaled"), {"rope_type": "ntk"}, 16384)
    again = trained_rope.read({**config, "model_type": "tape", "rope_scaling": ntk}, "again")
    found, _ = scaling.frequencies(trained_rope.extended(again, {"rope_type": "yarn"}, 65536), HEAD)
    np.testing.assert_allclose(
        found, angles("yarn", 1e4 * 4 ** (HEAD / (HEAD - 2)), 4.0, 16384), rtol=1e-13
    )
    np.testing.assert_allclose(
        scaling.frequencies(ntk, HEAD)[0], angles("default", again.unscaled_theta), rtol=1e-13
    )


@pytest.mark.parametrize(
    "keys, attention",
    [
        ({}, 0.1 * math.log(4) + 1),
        # DeepSeek-R1-0528-Qwen3-8B: times the default, by vLLM
        (
            {"attn_factor": 0.8782488562869419},
            1.0,
        ),
        (
            {"mscale": 0.707, "mscale_all_dim": 1.0},
            (0.0707 * math.log(4) + 1) / (0.1 * math.log(4) + 1),
        ),
        ({"mscale": 1.0, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 1.25}, 1.25),
        (
            {"finetuned": True, "extrapolation_factor": 1.0, "beta_fast": None},
            0.1 * math.log(4) + 1,
        ),
    ],
)
def test_other_names_for_yarns_attention_factor_are_read(keys, attention):
    config = content("yarn")
    rope = trained_rope.read(
        {**config, "rope_scaling": {**config["rope_scaling"], **keys}}, "model"
    )
    assert scaling.frequencies(rope.parameters, HEAD)[1] == pytest.approx(attention, rel=1e-9)
    assert trained_rope.read({**config, "rope_scaling": rope.parameters}, "model") == rope


@pytest.mark.parametrize(
    "change, word",
    [
        ({"rope_condense_ratio": 8}, '{"type": "linear", "factor": 8}'),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 3}}, "alpha"),
        ({"rope_scaling": {"full_attention": {"rope_type": "default"}}}, "kind of layer"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "rope_type"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_theta"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"rope_scaling": 4.0}, "no mapping"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
    ],
)
def test_a_setting_of_config_json_that_is_not_known_is_named(change, word):
    with pytest.raises(UserError) as refused:
        trained_rope.read({**content("unscaled"), **change}, "models/mine")
    (problem,) = refused.value.problems
    assert (problem.field, problem.value) == ("model", "models/mine")
    assert word in str(problem)


def test_what_transformers_computes_is_no_mistake():
    """Kimi K2 has equal betas, Llama 4 equal bands: both were refused, with the remedy to edit config.json."""
    kimi = content("yarn")
    kimi["rope_scaling"] = {**kimi["rope_scaling"], "beta_fast": 1.0, "beta_slow": 1.0}
    step = content("llama3")
    step["rope_scaling"] = {**LLAMA3, "low_freq_factor": 4.0}
    for config, key, value in ((kimi, "beta_slow", 1.0), (step, "low_freq_factor", 4.0)):
        rope = trained_rope.read(config, "model")
        assert rope.parameters[key] == value and not list(
            trained_rope.check_change(rope, {}, 2 * rope.native_length)
        )
    turned = {"rope_type": "yarn", "beta_slow": 2.0}  # not the model's own
    fields = [
        each.field
        for each in trained_rope.check_change(trained_rope.read(kimi, "kimi"), turned, 262144)
    ]
    assert fields == ["rope_parameters.beta_slow"]


@pytest.mark.parametrize(
    "base, keys",
    [
        ("unscaled", {"rope_type": "default", "factor": 8.0}),  # ms-swift's
        ("linear, window named", {"beta_fast": 32, "truncate": True}),
        ("yarn", {"mscale": 0.7}),
        ("dynamic", {"mscale": 1.0, "mscale_all_dim": 0.0, "low_freq_factor": 1.0}),
    ],
)
def test_parameters_of_another_type_are_passed_over_as_in_transformers(base, keys):
    config = content(base)
    changed = {**config, "rope_scaling": {**(config["rope_scaling"] or {}), **keys}}
    rope = trained_rope.read(changed, "model")
    assert rope == trained_rope.read(config, "model")
    shown = trained_rope.described_change(rope, {}, rope.native_length)
    for key, value in keys.items():
        assert key == "rope_type" or f"{key} = {value!r}" in shown


def hunyuan(**changes):
    block = {
        "type": "dynamic",
        "alpha": 1000.0,
        "factor": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
    }
    return {
        **content("unscaled"),
        "model_type": "hunyuan_v1_dense",
        "rope_scaling": block,
        **changes,
    }


def test_hunyuan_s_alpha_makes_a_fixed_base():
    """Its class has NTK's base for every length. It was refused, and the remedy made the base 1,000 times too small."""
    base = 1e4 * 1000 ** (HEAD / (HEAD - 2))
    rope = trained_rope.read(hunyuan(), "hunyuan")
    assert (rope.type, rope.native_length, rope.is_scaled) == ("default", 4096, False)
    np.testing.assert_allclose(
        scaling.frequencies(rope.parameters, HEAD)[0], angles("default", base), rtol=1e-13
    )
    assert "alpha 1000" in trained_rope.described_change(rope, {}, 8192)
    found = trained_rope.extended(rope, {"rope_type": "auto"}, 8192)
    np.testing.assert_allclose(
        scaling.frequencies(found, HEAD)[0], angles("yarn", base, 2.0, 4096), rtol=1e-13
    )
    without = trained_rope.read(hunyuan(rope_scaling={"type": "dynamic", "factor": 2.0}), "hunyuan")
    assert (without.type, without.factor) == ("dynamic", 2.0)


def test_the_alpha_of_another_family_can_be_written_as_its_base():
    """No class reads it there; the remedy states the base, and is read as that when it is followed."""
    with pytest.raises(UserError) as refused:
        trained_rope.read(hunyuan(model_type="llama"), "model")
    (problem,) = [each for each in refused.value.problems if "alpha" in each.wrong]
    base = 1e4 * 1000 ** (HEAD / (HEAD - 2))
    assert f'"rope_theta": {base:.10g}' in problem.remedy
    rope = trained_rope.read(
        hunyuan(model_type="llama", rope_scaling=None, rope_theta=base), "model"
    )
    np.testing.assert_allclose(
        scaling.frequencies(rope.parameters, HEAD)[0], angles("default", base), rtol=1e-13
    )


@pytest.mark.parametrize(
    "change, remedy",
    [
        # LLaMA-Factory's, with transformers 4
        (
            {LENGTH: 12288.0},
            '"max_position_embeddings": 12288',
        ),
        ({LENGTH: "4096"}, '"max_position_embeddings": 4096'),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "llama3, longrope, ntk"),
        (
            {"rope_scaling": {"type": "linear", "factor": "two"}},
            "what the weights were trained with",
        ),
        (
            {"rope_scaling": {"type": "linear", "ratio": 2.0, "factor": 2.0}},
            "the terms of linear: factor",
        ),
    ],
)
def test_a_remedy_states_what_was_trained_and_takes_nothing_away(change, remedy):
    with pytest.raises(UserError) as refused:
        trained_rope.read({**content("unscaled"), **change}, "model")
    (problem,) = refused.value.problems
    assert remedy in problem.remedy and "remove" not in problem.remedy


@pytest.mark.parametrize(
    "change, wrong",
    [
        ({"partial_rotary_factor": [1, 2]}, "partial_rotary_factor = [1, 2], not a number"),
        ({"rope_type": ["yarn"]}, "rope_type = ['yarn'], which is no name"),
        ({"mscale": "0.7", "mscale_all_dim": 1.0}, "mscale = '0.7', not a number"),
        ({"mscale": 1.0, "mscale_all_dim": [1]}, "mscale_all_dim = [1], not a number"),
        ({"attn_factor": 0.5, "attention_factor": "1"}, "attention_factor = '1', not a number"),
        ({"rope_type": None, "type": None}, "rope_type that is null"),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3"])
def test_parameters_that_no_class_can_compute_with_are_refused(model_type, change, wrong):
    """A text among YaRN's factors was a traceback, and a null in the place of its type left the scaling out."""
    config = {**content("yarn"), "model_type": model_type}
    config["rope_scaling"] = {**config["rope_scaling"], **change}
    with pytest.raises(UserError) as refused:
        trained_rope.read(config, "model")
    assert wrong in refused.value.problems[0].wrong


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": [1, 2]},
        {"num_attention_heads": {"a": 1}},
        {"head_dim": "64"},
        {"hidden_size": True},
    ],
)
def test_a_size_that_is_no_number_is_refused_by_name(change):
    """A dry run, which asks no class of transformers about a Llama, ended in a traceback."""
    ((key, value),) = change.items()
    config = {
        **content("yarn"),
        "hidden_size": 256,
        "num_attention_heads": 4,
        "head_dim": None,
        **change,
    }
    with pytest.raises(UserError) as refused:
        trained_rope.read(config, "model")
    assert refused.value.problems[0].wrong == f"its config.json has {key} = {value!r}, not a number"


def test_hunyuan_s_alpha_and_base_are_numbers():
    """A base that is a text was a traceback, and an alpha that is a text was passed over."""
    with pytest.raises(UserError, match="rope_theta = '10000'"):
        trained_rope.read(hunyuan(rope_theta="10000"), "model")
    scaled = hunyuan()["rope_scaling"]
    with pytest.raises(UserError, match="alpha = '1000'"):
        trained_rope.read(hunyuan(rope_scaling={**scaled, "alpha": "1000"}), "model")


def test_the_length_of_llama_s_first_folders_is_read():
    config = {**content("unscaled"), LENGTH: None, "max_sequence_length": 2048}
    assert trained_rope.read(config, "model").native_length == 2048


def test_vllm_s_factor_in_another_family_is_asked_for():
    """Its class passes over attn_factor: the weights may have been trained with either."""
    config = {**content("yarn"), "model_type": "olmo2"}
    config["rope_scaling"] = {**config["rope_scaling"], "attn_factor": 0.5}
    with pytest.raises(UserError, match="attn_factor") as refused:
        trained_rope.read(config, "model")
    usual = 0.1 * math.log(4) + 1
    assert all(f"{each:.10g}" in refused.value.problems[0].remedy for each in (usual, 0.5 * usual))


@pytest.mark.parametrize(
    "harmless",
    [
        {"rope_condense_ratio": 1},
        {"rope_interleaved": False},
        {"partial_rotary_factor": 1.0},
        {WINDOW: 8192},
        # as exported folders have both forms
        {"rope_parameters": {**BASES["llama3"][0], "rope_theta": 5e5}},
    ],
)
def test_a_setting_without_effect_is_none(harmless):
    assert trained_rope.read({**content("llama3"), **harmless}, "llama3") == own("llama3")


@pytest.mark.parametrize(
    "name, change, key",
    [
        # transformers takes the field outside, its older versions the one inside
        ("yarn", {WINDOW: 8192}, WINDOW),
        # transformers takes rope_scaling whole, and so 10,000
        (
            "unscaled",
            {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": None},
            "rope_theta",
        ),
    ],
)
def test_fields_of_config_json_that_disagree_are_refused(name, change, key):
    config = {**content(name), **change}
    if key == "rope_theta":
        config["rope_parameters"] = {**config["rope_scaling"], "rope_theta": 1e5}
    with pytest.raises(UserError, match=f"two readings of {key}"):
        trained_rope.read(config, "model")


def test_a_model_of_this_project_has_the_length_that_it_names_whatever_its_factor():
    """Extended to no more than it had, with a factor beyond that: YaRN x4 at 4,096 tokens."""
    change = {"rope_type": "auto", "factor": 4.0}
    found = trained_rope.extended(own("unscaled"), change, 4096)
    config = {**content("unscaled"), "model_type": "tape", "rope_scaling": found}
    again = trained_rope.read(config, "again")
    assert (again.native_length, again.reach, again.parameters) == (4096, 16384, found)


def test_a_length_that_a_base_leaves_open_stays_open_in_what_is_trained_from_it():
    """LongAlpaca fine-tuned at the 4,096 tokens that it names: x4 from 4,096 or from 1,024 is still not known."""
    trained = {**content("linear, open"), "model_type": "tape", "max_position_embeddings": 4096}
    again = trained_rope.read({**trained, "rope_scaling": own("linear, open").parameters}, "again")
    assert (again.native_length, again.window) == (4096, None)
    (problem,) = trained_rope.check_change(again, {}, 16384)
    assert problem.field == f"rope_parameters.{WINDOW}"


def test_a_factor_that_reaches_farther_stays():
    """Llama 3.2's x32 reaches 262,144 of its 131,072 tokens."""
    llama32 = content("llama3")
    llama32["rope_scaling"] = {**llama32["rope_scaling"], "factor": 32.0}
    rope = trained_rope.read(llama32, "llama3.2")
    assert trained_rope.extended(rope, {"rope_type": "auto"}, 131072)["factor"] == 32.0
