"""Markdown tables and numbers of parameters as people read them."""

from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import summarise


def test_names_are_on_the_left_and_numbers_on_the_right():
    assert markdown_table(["name", "x"], [["a", "1"]]) == "| name | x |\n| --- | ---: |\n| a | 1 |"
    assert markdown_table(["", "b", "c"], [], "l").splitlines() == ["|  | b | c |", "| --- | --- | --- |"]


def test_bars_and_line_ends_in_a_cell_are_escaped():
    assert markdown_table(["a|b"], [["c\nd"]], "l") == "| a\\|b |\n| --- |\n| c d |"


def test_names_of_layers_are_summarised():
    names = ("model.norm.weight", *(f"model.layers.{i}.position.gate.weight" for i in (0, 1, 2, 5)))
    assert summarise(names).splitlines() == ["model.norm.weight", "model.layers.{0-2,5}.position.gate.weight"]
