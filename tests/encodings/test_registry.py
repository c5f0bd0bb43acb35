"""The registry: one name, one implementation, and an answer for whoever mistypes one."""

import dataclasses

import pytest

from tape_ds import encodings
from tape_ds.encodings import base, registry
from tests.models.helpers import ENCODINGS, tiny_config


def test_every_encoding_builds_both_its_parts():
    names = "alibi bipe_alibi bipe_rope cope fire fox nope pope prope randpe repo rope sincos t5 tape xpos yarn"
    assert encodings.available() == names.split()
    for name in encodings.available():
        config = tiny_config(encoding=name)
        assert isinstance(registry.build(config), base.PositionEncoding)
        assert isinstance(registry.build_layer(config, 0), base.PositionLayer)
        assert encodings.check_options(name, {}) == []


def test_hooks_that_an_encoding_leaves_alone_do_nothing():
    layer, encoding = base.PositionLayer(), base.PositionEncoding(tiny_config(), encodings.Options())
    marks = object(), object()
    assert layer.rotate(*marks, None, None) == marks
    assert layer.observe(marks[0]) is None
    assert layer.accumulate(marks[1], lambda: None, None, 0) is marks[1]
    assert layer.carry(None, None, marks[0]) is None
    assert layer.score_bias(None, None) is None
    assert layer.next_state(None, marks[0], None, None) is marks[0]
    assert (layer.state_columns, layer.multiplications_per_token(100)) == (0, 0)
    assert encoding.embed(marks[0], None) is marks[0]
    assert encoding.start(None) is None
    assert (encoding.translation_invariant, encoding.cache_exact) == (True, True)
    assert (encoding.reads_tokens, encoding.remembers) == (False, 0)


@pytest.mark.parametrize(
    "name, options, field, words",
    [
        ("adarope", {}, "position_encoding", "did you mean 'rope'"),
        (
            "zzz",
            {},
            "position_encoding",
            "one of: alibi, bipe_alibi, bipe_rope, cope, fire, fox, nope, pope, prope, randpe, repo, rope, sincos, t5",
        ),
        (
            "rope",
            {"rank": 3},
            "position_options.rank",
            "one of: abacus, abacus_digits, abacus_places, abacus_shift, log_scale, nope_layers, random_shift",
        ),
        ("rope", {"random_shift": -1}, "position_options.random_shift", "0 or more"),
        ("pope", {"delta_init": "normal"}, "position_options.delta_init", "zero, uniform"),
        ("prope", {"share": 0.0}, "position_options.share", "above 0, 1 at most"),
        ("prope", {"share": 1.5}, "position_options.share", "above 0, 1 at most"),
        (
            "bipe_rope",
            {"separators": [3, "x"]},
            "position_options.separators",
            "give a list, each item a whole number, or null",
        ),
        (
            "bipe_rope",
            {"separators": 3},
            "position_options.separators",
            "give a list, each item a whole number, or null",
        ),
        ("nope", {"score_scale": 0}, "position_options.score_scale", "above 0, or null"),
        ("nope", {"score_scale": 0.1, "trained_length": 0}, "position_options.trained_length", "1 or more, or null"),
        ("nope", {"text_length": 99}, "position_options.text_length", "give score_scale as well"),
        ("fire", {"threshold": "far"}, "position_options.threshold", "give a number"),
        ("tape", {"atention_update": "mix"}, "position_options.atention_update", "did you mean 'attention_update'"),
        ("tape", {"attention_update": "sum"}, "position_options.attention_update", "mix, scale, off"),
        ("tape", {"feed_forward": "yes"}, "position_options.feed_forward", "give true or false"),
        ("tape", {"rank": True}, "position_options.rank", "give a whole number, or null"),
        ("tape", {"rank": 2.0}, "position_options.rank", "give a whole number, or null"),
        ("tape", {"rank": 0}, "position_options.rank", "give 1 or more, or null"),
        ("repo", {"start_layer": -1}, "position_options.start_layer", "give 0 or more"),
        ("repo", {"width": 0}, "position_options.width", "give 1 or more"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(name, options, field, words):
    (problem,) = encodings.check_options(name, options)
    assert problem.field == field
    assert words in str(problem)


def test_all_mistakes_come_together():
    problems = encodings.check_options("tape", {"rnak": 3, "feed_forward": 1, "attention_update": None})
    assert len(problems) == 3


def test_a_whole_number_may_stand_for_a_float():
    """YAML's ``threshold: 512`` is an int."""
    assert encodings.check_options("fire", {"threshold": 512}) == []


@pytest.mark.parametrize("name", ENCODINGS)
def test_learning_is_having_parameters(name):
    """Methods and recipes go by this answer instead of building the encoding."""
    config = tiny_config(encoding=name)
    layers = [registry.build_layer(config, index) for index in range(config.num_hidden_layers)]
    parts = [registry.build(config), *layers]
    learned = any(list(part.parameters()) for part in parts)
    chosen = encodings.options(config)
    assert (chosen.learns or chosen.abacus) == learned


def test_only_what_a_tokenizer_decides_is_taken_from_it():
    """Options that nobody gave stay unsaid, so that a configuration says what was chosen."""
    assert encodings.options_for("tape", {"rank": 3}, tokenizer=None) == {"rank": 3}
    given = {"separators": [5]}
    assert encodings.options_for("bipe_rope", given, tokenizer=None) == given


def test_options_are_frozen():
    """Layers share one object of options."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        encodings.options(tiny_config()).rank = 3


@pytest.mark.parametrize("name", encodings.available())
def test_what_is_said_of_an_encoding_is_what_its_classes_do(name):
    """Recipes go by what options say, and import no class to ask it."""
    config = tiny_config(encoding=name)
    overrides = registry.imported(registry.entry_of(name).layer).score_bias is not base.PositionLayer.score_bias
    assert encodings.options_of(name, {}).biases_scores == overrides
    assert encodings.options_of(name, {}).reads_tokens == registry.build(config).reads_tokens
