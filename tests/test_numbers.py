"""Names of parameters for people."""

from tape_ds.numbers import summarise


def test_names_of_layers_are_drawn_together():
    names = ("model.norm.weight", *(f"model.layers.{i}.position.gate.weight" for i in (0, 1, 2, 5)))
    assert summarise(names).splitlines() == ["model.norm.weight", "model.layers.{0-2,5}.position.gate.weight"]
