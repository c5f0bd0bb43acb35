"""The registry: one name, one implementation, and mistyped names and options refused."""

import pytest

from tape_ds import encodings
from tape_ds.encodings import base, registry
from tape_ds.errors import UserError
from tests.models.helpers import ENCODINGS, tiny_config


def test_every_encoding_builds_both_its_parts():
    names = "alibi bipe_alibi bipe_rope cope fire fox nope pope prope randpe repo rope sincos t5 tape xpos yarn"
    assert encodings.available() == names.split()
    for name in encodings.available():
        config = tiny_config(encoding=name)
        assert isinstance(registry.build(config), base.PositionEncoding)
        assert isinstance(registry.build_layer(config, 0), base.PositionLayer)
        assert encodings.check_options(name, {}) == []


@pytest.mark.parametrize(
    "name, options, field, words",
    [
        ("adarope", {}, "position_encoding", "did you mean 'rope'"),
        (
            "tape",
            {"atention_update": "mix"},
            "position_options.atention_update",
            "did you mean 'attention_update'",
        ),
        (
            "tape",
            {"attention_update": "sum"},
            "position_options.attention_update",
            "mix, scale, off",
        ),
        ("tape", {"feed_forward": "yes"}, "position_options.feed_forward", "true or false"),
        ("tape", {"rank": True}, "position_options.rank", "a whole number"),
        ("tape", {"rank": 2.0}, "position_options.rank", "a whole number"),
        ("tape", {"rank": 0}, "position_options.rank", "1 or more"),
        ("bipe_rope", {"separators": [3, "x"]}, "position_options.separators", "a list"),
        ("prope", {"share": 0.0}, "position_options.share", "above 0, 1 at most"),
        ("prope", {"share": 1.5}, "position_options.share", "above 0, 1 at most"),
        ("nope", {"text_length": 99}, "position_options.text_length", "give score_scale as well"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(name, options, field, words):
    (problem,) = encodings.check_options(name, options)
    assert problem.field == field
    assert words in str(problem)


@pytest.mark.parametrize("name", ["bipe_rope", "prope", "repo"])
def test_angles_that_do_not_follow_the_length_in_tokens_refuse_dynamic_scaling(name):
    dynamic = {
        "rope_type": "dynamic",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 8,
    }
    with pytest.raises(UserError, match="dynamic"):
        tiny_config(encoding=name, rope_parameters=dynamic)


def test_all_mistakes_come_together():
    problems = encodings.check_options(
        "tape", {"rnak": 3, "feed_forward": 1, "attention_update": None}
    )
    assert len(problems) == 3


@pytest.mark.parametrize("name", ENCODINGS)
def test_learning_is_having_parameters(name):
    """Methods and recipes go by this answer instead of building the encoding."""
    config = tiny_config(encoding=name)
    layers = [registry.build_layer(config, index) for index in range(config.num_hidden_layers)]
    parts = [registry.build(config), *layers]
    learned = any(list(part.parameters()) for part in parts)
    chosen = encodings.options(config)
    assert (chosen.learns or chosen.abacus) == learned


@pytest.mark.parametrize("name", encodings.available())
def test_what_is_said_of_an_encoding_is_what_its_classes_do(name):
    """Recipes go by what options say, and import no class to ask it."""
    config = tiny_config(encoding=name)
    overrides = (
        registry.imported(registry.entry_of(name).layer).score_bias
        is not base.PositionLayer.score_bias
    )
    assert encodings.options_of(name, {}).biases_scores == overrides
    assert encodings.options_of(name, {}).reads_tokens == registry.build(config).reads_tokens
