"""The registry: one name, one implementation, and an answer for whoever mistypes one."""

import dataclasses

import pytest

from tape_ds.model import positions
from tests.model.helpers import tiny_config


def test_every_encoding_builds_both_its_parts():
    assert positions.available() == ["rope", "tape"]
    for name in positions.available():
        config = tiny_config(position_encoding=name)
        assert isinstance(positions.build(config), positions.PositionEncoding)
        assert isinstance(positions.build_layer(config, 0), positions.PositionLayer)
        assert positions.check_options(name, {}) == []


def test_hooks_that_an_encoding_leaves_alone_do_nothing():
    layer, encoding = positions.PositionLayer(), positions.PositionEncoding()
    marks = object(), object()
    assert layer.rotate(*marks, None, None) == marks
    assert layer.carry(None, None, marks[0]) is None
    assert layer.after_attention(marks[0], None) is marks[0]
    assert layer.after_mlp(None, marks[0], None) is marks[0]
    assert encoding.embed(marks[0], None) is marks[0]
    assert encoding.start(None) is None
    assert encoding.translation_invariant


@pytest.mark.parametrize(
    "name, options, field, words",
    [
        ("adarope", {}, "position_encoding", "did you mean 'rope'"),
        ("zzz", {}, "position_encoding", "one of: rope, tape"),
        ("rope", {"rank": 3}, "position_options.rank", "takes no options"),
        ("tape", {"atention_update": "mix"}, "position_options.atention_update", "did you mean 'attention_update'"),
        ("tape", {"attention_update": "sum"}, "position_options.attention_update", "mix, scale, off"),
        ("tape", {"feed_forward": "yes"}, "position_options.feed_forward", "give bool"),
        ("tape", {"rank": True}, "position_options.rank", "give int or null"),
        ("tape", {"rank": 2.0}, "position_options.rank", "give int or null"),
        ("tape", {"rank": 0}, "position_options.rank", "at least 1"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(name, options, field, words):
    (problem,) = positions.check_options(name, options)
    assert problem.field == field
    assert words in str(problem)


def test_all_mistakes_come_together():
    problems = positions.check_options("tape", {"rnak": 3, "feed_forward": 1, "attention_update": None})
    assert len(problems) == 3


def test_options_are_frozen():
    """Layers share one object of options."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        positions.options(tiny_config()).rank = 3
