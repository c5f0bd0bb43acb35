"""What a user writes to name things that are compared."""

import pytest

from tape_ds.errors import Problem, UserError
from tape_ds.training.comparison import entries
from tape_ds.training.comparison.entries import Entry


def test_an_entry_is_a_name_and_fields():
    entry = entries.read('tape+lora{"window": 16384, "data": ["a/b"]}', "methods")
    assert entry == Entry("tape+lora", {"window": 16384, "data": ["a/b"]})
    assert entry.label == "tape+lora window=16384 data=['a/b']"
    assert entry.folder == "tape+lora_window=16384_data=_a_b"
    assert entries.read("rope", "encodings").label == entries.read("rope", "encodings").folder == "rope"


def test_options_that_are_no_json_are_named_with_an_example():
    with pytest.raises(UserError, match="no JSON") as caught:
        entries.read("lora{rank: 4}", "methods")
    (problem,) = caught.value.problems
    assert (problem.field, problem.value) == ("methods", "lora{rank: 4}") and "'lora{\"" in problem.remedy


def test_everything_wrong_with_all_of_them_is_collected():
    def read_one(text):
        if text.startswith("bad"):
            raise UserError(Problem("methods", text, "bad", "better"))
        return Entry(text)

    found, wrong = entries.read_all(["a", "bad 1", "b", "a", "bad 2"], "methods", read_one)
    assert [entry.name for entry in found] == ["a", "b", "a"]
    assert [(problem.value, problem.wrong) for problem in wrong] == [
        ("bad 1", "bad"),
        ("bad 2", "bad"),
        ("a", "named twice"),
    ]


def test_arguments_for_every_run_stand_behind_two_dashes():
    assert entries.split(["--output", "o", "--", "--seed", "1"]) == (["--output", "o"], ["--seed", "1"])
    assert entries.split(["--output", "o"]) == (["--output", "o"], [])


@pytest.mark.parametrize(
    ("passed_on", "fields"),
    [
        (["--output_dir", "x", "--recipe=y"], ["output_dir", "recipe"]),
        (["--output-dir=x"], ["output_dir"]),
        (["--recipe.key", "1"], ["recipe"]),
        (["--run_name", "recipe"], []),
    ],
)
def test_what_the_command_decides_cannot_be_passed_on(passed_on, fields):
    found = entries.check_passed_on(passed_on, ("recipe", "output_dir"))
    assert [problem.field for problem in found] == fields
