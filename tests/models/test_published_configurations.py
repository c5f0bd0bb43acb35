"""Published configurations: each optional field left out, each scaling in both spellings, for every family.

Of each, a model is refused with a message, or has the frequencies of the formulas below: those of the base as it is
read and as its class computes it, and those of the extended model as it is built.
"""

import functools
import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tape_ds.encodings import rope as rope_encoding
from tape_ds.encodings import scaling, trained_rope
from tape_ds.errors import UserError
from tape_ds.models import decoder, hybrids
from tape_ds.models.loading import extendable
from tape_ds.planning import recipe_job
from tests.config.loads import extension as load
from tests.models.tiny_decoders import families, tiny_config

THETA = 50_000.0
"""No class's default, so that a base taken from elsewhere shows."""
WINDOW = "original_max_position_embeddings"
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, WINDOW: 16},
    "yarn, one beta": {
        "rope_type": "yarn",
        "factor": 4.0,
        WINDOW: 16,
        "beta_fast": 1.0,
        "beta_slow": 1.0,
    },
    "yarn, DeepSeek": {
        "rope_type": "yarn",
        "factor": 4.0,
        WINDOW: 16,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        WINDOW: 16,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "llama3, one band": {
        "rope_type": "llama3",
        "factor": 4.0,
        WINDOW: 16,
        "low_freq_factor": 2,
        "high_freq_factor": 2,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "default, with a factor": {"rope_type": "default", "factor": 4.0},
}
EXTENSIONS = ("yarn", "linear", "ntk")


def formula(rope, columns):
    """Frequencies and the factor on cosines, of transformers' parameters within the native length, in fp64."""
    kind, theta, factor = rope["rope_type"], rope["rope_theta"], rope.get("factor", 1.0)
    if kind == "ntk":
        theta *= factor ** (columns / (columns - 2))
    own = [theta ** (-2 * pair / columns) for pair in range((columns + 1) // 2)]
    if kind in ("default", "dynamic", "ntk"):
        return own, 1.0
    if kind == "linear":
        return [each / factor for each in own], 1.0
    window = rope[WINDOW]
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        found = []
        for each in own:
            wave = 2 * math.pi / each
            if wave > window / low:
                found.append(each / factor)
            elif wave < window / high:
                found.append(each)
            else:
                smooth = (window / wave - low) / (high - low)
                found.append((1 - smooth) * each / factor + smooth * each)
        return found, 1.0
    assert kind == "yarn"
    betas = (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1)
    ends = [
        columns * math.log(window / (beta * 2 * math.pi)) / (2 * math.log(theta)) for beta in betas
    ]
    if rope.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], columns - 1)
    if low == high:
        high += 0.001
    found = []
    for pair, each in enumerate(own):
        ramp = min(max((pair - low) / (high - low), 0), 1)
        found.append(each / factor * ramp + each * (1 - ramp))
    attention = rope.get("attention_factor")
    if attention is None:
        numerator = rope.get("mscale") or 1
        attention = 1 + 0.1 * numerator * math.log(factor)
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            attention /= 1 + 0.1 * rope["mscale_all_dim"] * math.log(factor)
    return found, attention


def columns_of(config):
    """Rotated columns of a head, by the fields of a configuration that its class has completed."""
    fields = config.to_dict()
    head = fields.get("qk_rope_head_dim") or fields.get("head_dim") or fields.get("kv_channels")
    head = head or fields["hidden_size"] // fields["num_attention_heads"]
    rope = fields["rope_parameters"]
    return int(head * rope.get("full_attention", rope).get("partial_rotary_factor", 1.0))


def rotary_classes(config):
    return {type(module) for module in decoder.rotary_modules(decoder.on_meta(config)).values()}


def computed(classes, config):
    """What a class of transformers computes for layers that see everything; nothing without such layers."""
    found = []
    for kind in classes:
        real = kind(config)
        names = [name for name, _ in real.named_buffers(recurse=False)]
        name = next(
            (each for each in ("full_attention_inv_freq", "inv_freq") if each in names), None
        )
        if name is not None:
            factor = getattr(real, name.replace("inv_freq", "attention_scaling"), 1.0)
            found.append((getattr(real, name).double().numpy(), factor))
    return found


def same(found, wanted):
    frequencies, factor = found
    np.testing.assert_allclose(frequencies, wanted[0], rtol=5e-6)  # classes compute in fp32
    assert factor == pytest.approx(wanted[1], rel=1e-6)


@functools.cache
def recipe():
    return load(["--recipe", "demo"])


def outcome(folder, content):
    """Check one ``config.json``; return whether the model was taken."""
    (folder / "config.json").write_text(json.dumps(content))
    try:
        native = extendable.read(folder)
        refused = extendable.check(native)
        own = None if refused else trained_rope.read(native.to_dict(), "model")
    except UserError as error:
        refused = error.problems
    if refused:
        assert all(problem.wrong and problem.remedy for problem in refused)
        assert not any("remove" in problem.remedy for problem in refused)
        return False
    assert "GiB" in recipe_job.memory_line(recipe(), native)
    if not hybrids.rotates(native):
        return True
    classes = rotary_classes(native) if extendable.by_own_class(native) else ()
    check_base(native, classes, own, AutoConfig.from_pretrained(folder))
    length = 4 * int(own.reach)
    for kind in [own.type] if own.is_scaled else EXTENSIONS:
        check_extension(native, classes, own, {"rope_type": kind}, length)
    return True


def check_base(native, classes, own, plain):
    if own.type in trained_rope.KEPT:
        return
    if not extendable.by_own_class(native):
        wanted = formula(plain.rope_parameters, columns_of(plain))
        same(scaling.frequencies(own.parameters, own.head_size), wanted)
        return
    rope = plain.rope_parameters
    wanted = formula(rope.get("full_attention", rope), columns_of(native))
    same(scaling.frequencies(own.parameters, own.head_size), wanted)
    for found in computed(classes, native):
        same(found, wanted)


def check_extension(native, classes, own, change, length):
    if list(trained_rope.check_change(own, change, length)):
        return
    asked = trained_rope.extended(own, change, length)
    try:
        config = extendable.configure(native, rope_parameters=asked, max_position_embeddings=length)
    except UserError as error:
        assert error.problems[0].remedy
        return
    if own.type in trained_rope.KEPT:
        return
    wanted = {**own.parameters, "factor": own.factor * length / own.reach}
    if change["rope_type"] != own.type:
        wanted = {
            "rope_type": change["rope_type"],
            "rope_theta": own.unscaled_theta,
            WINDOW: own.native_length,
        }
        wanted["factor"] = length / own.native_length
    built = trained_rope.of_full(config.rope_parameters)
    if "mscale" in built:  # transformers computes the factor on cosines from the new factor
        wanted = {**wanted, "attention_factor": None, "mscale": built["mscale"]}
        wanted["mscale_all_dim"] = built.get("mscale_all_dim")
    expected = formula(wanted, own.head_size)
    if not extendable.by_own_class(native):
        same(scaling.frequencies(config.rope_parameters, config.head_dim), expected)
        return
    for found in computed(classes, config):
        same(found, expected)


def published(family):
    """The fields of a tiny model of a family as config.json has them, with a base of its own."""
    content = json.loads(tiny_config(family).to_json_string(use_diff=False))
    content = {key: value for key, value in content.items() if value is not None}
    rope = content.get("rope_parameters") or {}
    for each in [content, rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if "rope_theta" in each:
            each["rope_theta"] = THETA
    return content


def without(content, key):
    return {name: value for name, value in content.items() if name != key}


@pytest.mark.parametrize("family", families())
def test_a_family_with_any_field_left_out_or_any_scaling(family, tmp_path):
    if extendable.check(tiny_config(family)):  # docs/results/decoders.md has the reason
        return
    content = published(family)
    assert outcome(tmp_path, content)
    for key in content.keys() - {"model_type"}:
        outcome(tmp_path, without(content, key))
    if not hybrids.rotates(tiny_config(family)):
        return
    rope = content["rope_parameters"]
    if any(isinstance(value, dict) for value in rope.values()):
        for kind, each in rope.items():
            for key in each:
                outcome(tmp_path, content | {"rope_parameters": rope | {kind: without(each, key)}})
            outcome(tmp_path, content | {"rope_parameters": without(rope, kind)})
    else:
        for key in rope:
            outcome(tmp_path, content | {"rope_parameters": without(rope, key)})
    share = {key: value for key, value in rope.items() if key == "partial_rotary_factor"}
    for block in SCALINGS.values():
        older = (
            without(content, "rope_parameters")
            | {"rope_theta": THETA, "rope_scaling": block}
            | share
        )
        outcome(tmp_path, older)
        outcome(tmp_path, content | {"rope_parameters": {"rope_theta": THETA} | block | share})


def hunyuan(**changes):
    """As published, sizes apart: ``dynamic`` with an ``alpha`` is a fixed base in transformers' class."""
    block = {
        "type": "dynamic",
        "alpha": 1000.0,
        "factor": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
    }
    content = without(published("hunyuan_v1_dense"), "rope_parameters")
    return (
        content | {"rope_theta": THETA, "rope_scaling": block | {"mscale_all_dim": 0.0}} | changes
    )


@pytest.mark.parametrize("left_out", ["nothing", "head_dim"])
@pytest.mark.parametrize("family", ["hunyuan_v1_dense", "hunyuan_v1_moe"])
def test_hunyuan_s_alpha_is_a_fixed_base(family, left_out, tmp_path):
    """It was refused with the remedy to remove alpha, after which the base was 1,000 times too small."""
    content = without(hunyuan(model_type=family), left_out)
    (tmp_path / "config.json").write_text(json.dumps(content))
    plain = AutoConfig.from_pretrained(tmp_path)
    plain.head_dim = 16  # which the class needs
    own_base = THETA * 1000 ** (16 / 14)
    of_class = computed(rotary_classes(plain), plain)
    assert len(of_class) == 1
    same(of_class[0], formula({"rope_type": "default", "rope_theta": own_base}, 16))

    native = extendable.read(tmp_path)
    assert native.head_dim == 16 and extendable.check(native) == []
    own = trained_rope.read(native.to_dict(), "hunyuan")
    assert own.native_length == 64
    same(scaling.frequencies(own.parameters, 16), of_class[0])
    asked = trained_rope.extended(own, {"rope_type": "auto"}, 256)
    built = extendable.configure(native, rope_parameters=asked, max_position_embeddings=256)
    wanted = formula({"rope_type": "yarn", "rope_theta": own_base, "factor": 4.0, WINDOW: 64}, 16)
    same(computed(rotary_classes(native), built)[0], wanted)


def test_kimi_s_equal_betas_grow(tmp_path):
    """Kimi K2: x32 from 32 tokens becomes x64; the factor on cosines is that of mscale over mscale_all_dim."""
    rope = {"type": "yarn", "factor": 32.0, WINDOW: 32, "beta_fast": 1.0, "beta_slow": 1.0}
    rope |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    content = without(published("deepseek_v3"), "rope_parameters")
    content |= {
        "rope_theta": THETA,
        "rope_scaling": rope,
        "max_position_embeddings": 1024,
        "qk_rope_head_dim": 16,
    }
    (tmp_path / "config.json").write_text(json.dumps(content | {"head_dim": 16}))
    native = extendable.read(tmp_path)
    assert extendable.check(native) == []
    own = trained_rope.read(native.to_dict(), "kimi")
    asked = trained_rope.extended(own, {"rope_type": "auto"}, 2048)
    assert asked["factor"] == 64.0
    built = extendable.configure(native, rope_parameters=asked, max_position_embeddings=2048)
    wanted = formula(rope | {"rope_type": "yarn", "rope_theta": THETA, "factor": 64.0}, 16)
    assert wanted[1] == 1.0
    same(computed(rotary_classes(native), built)[0], wanted)


def test_mixtral_has_no_size_of_a_head(tmp_path):
    """Its class leaves it None, and YaRN was a TypeError of transformers, inside the dry run's line about memory."""
    content = without(published("mixtral"), "head_dim")
    (tmp_path / "config.json").write_text(json.dumps(content))
    native = extendable.read(tmp_path)
    own = trained_rope.read(native.to_dict(), "mixtral")
    asked = trained_rope.extended(own, {"rope_type": "yarn"}, 256)
    built = extendable.configure(native, rope_parameters=asked, max_position_embeddings=256)
    assert built.head_dim == 64 // 4
    wanted = formula({"rope_type": "yarn", "rope_theta": THETA, "factor": 4.0, WINDOW: 64}, 16)
    same(computed(rotary_classes(native), built)[0], wanted)


@pytest.mark.parametrize(
    "family, changes, words",
    [
        (
            "deepseek_v3",
            {"head_dim": 64},
            "rotates 64 columns of a head, and its config.json has 8",
        ),
        (
            "bitnet",
            {"num_attention_heads": 64},
            "rotates 2 columns of a head, and its config.json has 1",
        ),
        ("smollm3", {"hidden_act": "nonesuch"}, "cannot be built with its config.json (KeyError"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(family, changes, words, tmp_path):
    """DeepSeek's class would make frequencies for another number of columns than its queries have."""
    content = published(family) | changes
    (tmp_path / "config.json").write_text(json.dumps(content))
    problems = extendable.check(extendable.read(tmp_path))
    assert len(problems) == 1 and words in problems[0].wrong


def test_other_frequencies_than_those_read_are_refused(monkeypatch):
    """A class that passes over what config.json says."""
    native = tiny_config("olmo2")
    real = scaling.frequencies
    monkeypatch.setattr(scaling, "frequencies", lambda *given: (real(*given)[0] * 1.001, 1.0))
    (problem,) = extendable.check(native)
    assert "computes other frequencies" in problem.wrong
    monkeypatch.setattr(scaling, "frequencies", lambda *given: (real(*given)[0], 1.001))
    (problem,) = extendable.check(native)
    assert "multiplies cosines by 1, and its config.json by 1.001" in problem.wrong


def test_layers_with_a_window_alone_are_not_scaled():
    """Without layer_types Gemma 3's first layers all have a window: the scaling would reach none of them."""
    native = tiny_config("gemma3_text", layer_types=["sliding_attention"] * 2)
    assert extendable.check(native) == []
    own = trained_rope.read(native.to_dict(), "gemma")
    with pytest.raises(UserError, match="none of its 2 layers sees everything"):
        extendable.configure(
            native, rope_parameters=trained_rope.extended(own, {"rope_type": "yarn"}, 256)
        )


def test_a_type_that_a_class_does_not_compute_names_those_that_it_does():
    """It named linear, ntk and yarn for every family, also where none of them works."""
    native = tiny_config("phimoe")
    own = trained_rope.read(native.to_dict(), "phimoe")
    with pytest.raises(UserError) as refused:
        extendable.configure(
            native, rope_parameters=trained_rope.extended(own, {"rope_type": "linear"}, 256)
        )
    assert refused.value.problems[0].remedy == "rope_parameters.rope_type: ntk"


@pytest.mark.parametrize("family", ["mistral", "olmo2"])
def test_a_length_with_a_point_is_to_be_written_whole(family, tmp_path):
    """As LLaMA-Factory wrote it with transformers 4; transformers 5 opens no such file. The remedy asked for a length
    that the file has."""
    content = published(family) | {"max_position_embeddings": 12288.0}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match='"max_position_embeddings": 12288') as refused:
        extendable.read(tmp_path)
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("family", ["mistral", "olmo2"])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 0.5},
        {"rope_type": "dynamic", "factor": 0.5},
        {"rope_type": "yarn", "factor": 0.5, WINDOW: 32},
        {"rope_type": "yarn", "factor": 0.5, WINDOW: 32, "mscale": 0.7, "mscale_all_dim": 1.0},
        {
            "rope_type": "llama3",
            "factor": 0.5,
            WINDOW: 32,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ],
    ids=str,
)
def test_a_factor_below_1_is_computed_as_transformers_does(family, rope, tmp_path):
    """It was refused, though transformers only warns. It stays, and grows with a longer target from where it is."""
    content = published(family)
    content |= {"rope_scaling": rope, "rope_theta": THETA}
    content.pop("rope_parameters", None)
    (tmp_path / "config.json").write_text(json.dumps(content))
    native = AutoConfig.from_pretrained(tmp_path)
    length = native.max_position_embeddings
    wanted, attention = ROPE_INIT_FUNCTIONS[rope["rope_type"]](native)

    config = extendable.read(tmp_path)
    assert extendable.check(config) == []
    for own in (trained_rope.read(content, family), trained_rope.read(config.to_dict(), family)):
        found, factor = scaling.frequencies(own.parameters, own.head_size)
        np.testing.assert_allclose(found, wanted.double().numpy(), rtol=1e-5)
        assert factor == pytest.approx(attention)
        assert (own.native_length, own.factor) == (length, 0.5) and "below 1" in own.note
        assert trained_rope.extended(own, {}, length) == own.parameters
        assert not list(trained_rope.check_change(own, {}, 2 * length))
        grown = trained_rope.extended(own, {}, 2 * length)
        assert grown["factor"] == (2.0 if rope["rope_type"] == "dynamic" else 1.0)
    built = extendable.configure(
        config, rope_parameters=dict(own.parameters), max_position_embeddings=length
    )
    assert trained_rope.read(built.to_dict(), family).parameters == own.parameters
    (problem,) = list(trained_rope.check_change(own, {"factor": 0.4}, length))[:1]
    assert problem.field == "rope_parameters.factor"


def test_a_dynamic_factor_below_1_gives_transformers_base_beyond_the_window():
    config = tiny_config("mistral", max_position_embeddings=64)
    config.rope_parameters = {"rope_type": "dynamic", "factor": 0.5, "rope_theta": THETA}
    own = trained_rope.read(config.to_dict(), "mistral")
    for length in (64, 65, 200):
        wanted, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=length)
        found = rope_encoding.dynamic_frequencies(
            own.parameters, own.head_size, torch.tensor(length)
        )
        torch.testing.assert_close(found.float(), wanted, rtol=1e-5, atol=0)


def test_longrope_with_a_factor_below_1_is_kept():
    config = tiny_config("phi3", max_position_embeddings=64, original_max_position_embeddings=32)
    half = trained_rope.read(config.to_dict(), "phi3").head_size // 2
    own = {"rope_type": "longrope", "rope_theta": THETA, "factor": 0.5, WINDOW: 32}
    config.rope_parameters = own | {"short_factor": [1.0] * half, "long_factor": [2.0] * half}
    assert extendable.check(config) == []
    assert trained_rope.read(config.to_dict(), "phi3").parameters == config.rope_parameters


def test_truncate_counts_where_transformers_reads_it(tmp_path):
    """It reads YaRN's truncate beside the kinds of layers, and passes over one inside. That was refused as two fields
    that contradict, which no edit of them mended."""
    yarn = {"rope_type": "yarn", "factor": 8.0, WINDOW: 64, "rope_theta": THETA}
    plain = {"rope_type": "default", "rope_theta": THETA}
    content = {key: value for key, value in published("olmo3").items() if key != "rope_scaling"}
    content |= {"max_position_embeddings": 512, "head_dim": 64}
    for inside, outside, counts in (
        (False, None, True),
        (None, False, False),
        (True, False, False),
        (False,) * 3,
    ):
        full = yarn if inside is None else yarn | {"truncate": inside}
        content["rope_parameters"] = {"full_attention": full, "sliding_attention": plain}
        if outside is not None:
            content["rope_parameters"]["truncate"] = outside
        (tmp_path / "config.json").write_text(json.dumps(content))
        config = extendable.read(tmp_path)
        assert extendable.check(config) == []
        own = trained_rope.read(content, "olmo3")
        assert own.parameters.get("truncate", True) is counts
        assert ("passes over its truncate" in own.note) is (inside not in (None, counts))
        classes = rotary_classes(config)
        same(computed(classes, config)[0], formula(yarn | {"truncate": counts}, own.head_size))

        for asked in (True, False):  # by a recipe
            extended = trained_rope.extended(own, {"truncate": asked}, 1024)
            built = extendable.configure(
                config, rope_parameters=extended, max_position_embeddings=1024
            )
            wanted = formula(yarn | {"factor": 16.0, "truncate": asked}, own.head_size)
            same(computed(classes, built)[0], wanted)
