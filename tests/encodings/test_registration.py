"""An encoding from outside the package. That it computes, trains and decodes is run in docs/adding_an_encoding.md."""

from dataclasses import dataclass

import pytest

from tape_ds import encodings
from tape_ds.encodings import registry
from tape_ds.encodings.alibi import AlibiEncoding, AlibiLayer
from tape_ds.encodings.options import bounded
from tape_ds.errors import UserError
from tests.models.helpers import tiny_config

NAME = "outside"


@dataclass(frozen=True)
class OutsideOptions(encodings.Options):
    strength: float = bounded(1.0, gt=0)

    biases_scores = True


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    encodings.register(NAME, OutsideOptions, AlibiEncoding, AlibiLayer)


def test_it_is_named_and_checked_like_ours():
    assert NAME in encodings.available() and encodings.options_of(NAME, {}).biases_scores
    (problem,) = encodings.check_options(NAME, {"strength": 0})
    assert problem.field == "position_options.strength"
    with pytest.raises(UserError, match="strenght"):
        tiny_config(position_encoding=NAME, position_options={"strenght": 1.0})


def test_a_name_is_registered_once():
    # the same again changes nothing
    encodings.register(NAME, OutsideOptions, AlibiEncoding, AlibiLayer)
    with pytest.raises(ValueError, match="registered already"):
        encodings.register("rope", OutsideOptions, AlibiEncoding, AlibiLayer)
