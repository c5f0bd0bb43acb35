"""Numbers and names of parameters as people read them."""

import pytest

from tape_ds import numbers
from tape_ds.numbers import summarise


def test_names_of_layers_are_drawn_together():
    names = ("model.norm.weight", *(f"model.layers.{i}.position.gate.weight" for i in (0, 1, 2, 5)))
    assert summarise(names).splitlines() == ["model.norm.weight", "model.layers.{0-2,5}.position.gate.weight"]


@pytest.mark.parametrize(("tokens", "text"), [(512, "512"), (1024, "1k"), (131072, "128k"), (1000, "1,000")])
def test_lengths_are_written_as_people_type_them(tokens, text):
    assert numbers.length(tokens) == text
