"""Sections: wrong values of every kind of field, spelling of values, and rules over correct fields."""

from collections.abc import Iterator
from typing import Annotated, Literal

import pytest
from pydantic import Field, field_validator

from tape_ds import fields
from tape_ds.errors import Problem
from tape_ds.fields import Section, Tokens, WrongValueError, rule


class Inner(Section):
    """Has a prefix in a recipe."""

    size: int = Field(2, ge=1, le=9)


class Outer(Section):
    """Of every kind of field."""

    inner: Inner = Inner()
    name: str
    share: float = Field(0.5, gt=0, lt=1)
    rate: float | None = Field(None, gt=0)
    kept: list[Annotated[int, Field(ge=1)]] = []
    mode: Literal["on", "off"] | int = "off"
    options: dict[str, int] = {}
    even: int = 2
    words: list[str] = []
    either: str | list[str] = ""
    tokens: Tokens = 1
    lengths: list[Tokens] = []

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise WrongValueError("odd", "give an even one")
        return value

    @rule("share", "rate")
    def _both(self, limit: float) -> Iterator[Problem]:
        if self.rate is not None and self.rate * self.share > limit:
            yield Problem("rate", self.rate, "too much", "give less")


def checked(section, values):
    return [each for each in section.check(values) if each.wrong != "missing"]


@pytest.mark.parametrize(
    "name, value, wrong, remedy",
    [
        ("share", 1.0, "out of range", "give a number above 0 and below 1"),
        ("rate", float("inf"), "wrong type", "give a number, or null"),
        ("mode", "of", "wrong type", "give one of: on, off, or a whole number"),
        ("even", 3, "odd", "give an even one"),
        ("even", 2**63, "wrong type", "give a number of 64 bits"),
        ("shares", 1, "unknown field", "did you mean 'share'?"),
    ],
)
def test_a_wrong_value(name, value, wrong, remedy):
    (found,) = checked(Outer, {name: value})
    assert (found.field, found.wrong, found.remedy) == (name, wrong, remedy)


def test_all_wrong_values_are_found_once():
    found = checked(Outer, {"share": 2.0, "kept": [0, 0, "x"], "even": 4, "rate": -1})
    assert [problem.field for problem in found] == ["share", "rate", "kept"]


def test_a_field_of_an_inner_section_has_a_prefix():
    assert Outer.flat_fields()["inner_size"] is Inner.model_fields["size"]
    built = Outer.build({"inner_size": 5, "name": "a"})
    assert (built.inner.size, built.even) == (5, 2) and built.flat()["inner_size"] == 5


@pytest.mark.parametrize(
    "name, value, meant",
    [
        *(("mode", False, "off"), ("mode", 1e6, 1_000_000), ("rate", 1e6, 1e6), ("rate", 5, 5)),
        *(
            ("words", "a", ["a"]),
            ("either", "a", "a"),
            ("tokens", "2k", 2048),
            ("lengths", ["1k", 5], [1024, 5]),
        ),
    ],
)
def test_spelling(name, value, meant):
    found = getattr(Outer.build({"name": "a", name: value}), name)
    assert found == meant and type(found) is type(meant)


def test_rules_run_where_the_fields_they_read_are_correct():
    asked = Outer.build({"name": "a", "rate": 4.0})
    assert [each.field for each in fields.run_rules(asked, {"name"}, 1.0)] == ["rate"]
    assert not list(fields.run_rules(asked, {"share"}, 1.0)) and not list(
        fields.run_rules(asked, set(), 3.0)
    )
