"""The one writer of Markdown tables."""

import pytest

from tape_ds.markdown_table import markdown_table


def test_names_stand_left_and_numbers_right():
    assert markdown_table(["name", "x"], [["a", "1"]]) == "| name | x |\n| --- | ---: |\n| a | 1 |"


@pytest.mark.parametrize(
    ("align", "rule"),
    [(None, "| --- | ---: | ---: |"), ("l", "| --- | --- | --- |"), ("llr", "| --- | --- | ---: |")],
)
def test_the_last_letter_holds_for_the_columns_after_it(align, rule):
    assert markdown_table(["", "b", "c"], [], align).splitlines() == ["|  | b | c |", rule]


def test_a_cell_is_one_line_and_ends_at_its_own_bar():
    assert markdown_table(["a|b"], [["c\nd"]], "l") == "| a\\|b |\n| --- |\n| c d |"
