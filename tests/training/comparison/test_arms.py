"""What a user writes to name things that are compared."""

import pytest

from tape_ds.errors import UserError
from tape_ds.recipe import pretraining
from tape_ds.training.comparison import arms
from tape_ds.training.comparison.arms import Arm


def test_an_entry_is_a_name_and_fields():
    name, options = arms.read('tape+lora{"window": 16384, "data": ["a/b"]}', "methods")
    assert (name, options) == ("tape+lora", {"window": 16384, "data": ["a/b"]})
    arm = Arm(arms.labelled(name, options))
    assert arm.label == "tape+lora window=16384 data=['a/b']"
    assert arm.folder == "tape+lora_window=16384_data=_a_b"
    assert arms.read("rope", "encodings") == ("rope", {}) and Arm("rope").folder == "rope"


def test_options_that_are_no_json_are_named_with_an_example():
    with pytest.raises(UserError, match="no JSON") as caught:
        arms.read("lora{rank: 4}", "methods")
    (problem,) = caught.value.problems
    assert (problem.field, problem.value) == ("methods", "lora{rank: 4}") and "'lora{\"" in problem.remedy


def test_an_arms_own_fields_stand_behind_those_of_every_run():
    """The last word counts: what is said for all can be said otherwise for one."""
    arm = Arm("slow", {"learning_rate": 1e-4, "position_options": {"rank": 8}, "deepspeed": "zero2", "bf16": None})
    own = arm.arguments(["--learning_rate", "0.5", "--max_steps", "3"])
    assert own[-4:] == ["--deepspeed", "zero2", "--bf16", "null"]
    recipe = pretraining.load(["--recipe", "tiny", *own[:-2]], 1)
    assert recipe.trainer_value("learning_rate") == 1e-4 and recipe.trainer_value("max_steps") == 3
    assert recipe.model.position_options == {"rank": 8}


def read(tmp_path, text):
    file = tmp_path / "arms.yaml"
    file.write_text(text)
    return arms.read_file(str(file), ("recipe", "seed"), Arm)


def test_a_file_has_a_name_and_fields_for_each(tmp_path):
    found = read(
        tmp_path, "rope: {position_encoding: rope}\nslow tape:\n  learning_rate: 1e-4\n  betas: [1, 2]\n7: {}\n"
    )
    assert found == [
        Arm("rope", {"position_encoding": "rope"}),
        Arm("slow tape", {"learning_rate": 1e-4, "betas": [1, 2]}),
        Arm("7"),
    ]


def test_everything_wrong_with_a_file_is_collected(tmp_path):
    with pytest.raises(UserError) as caught:
        read(tmp_path, "a: {seed: 3, recipe: x}\nb: 4\nc: {--x: 1}\nd: {x: 1, x: 2}\nd: {}\n")
    assert [(problem.field, problem.wrong) for problem in caught.value.problems] == [
        ("d", "written twice in arms.yaml, the second time in line 5"),
        ("x", "written twice in arms.yaml, the second time in line 4"),
        ("seed", "a: decided by this command (arms.yaml line 1)"),
        ("recipe", "a: decided by this command (arms.yaml line 1)"),
        ("arms", "b is not a mapping (arms.yaml line 2)"),
        ("--x", "c: not a field's name (arms.yaml line 3)"),
    ]


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n"])
def test_a_file_that_names_no_arms(tmp_path, text):
    with pytest.raises(UserError):
        read(tmp_path, text)
    with pytest.raises(UserError, match="no such file"):
        arms.read_file(str(tmp_path / "none.yaml"), (), Arm)


def test_arms_that_could_not_be_told_apart():
    assert arms.check_alike([Arm("a"), Arm("a b"), Arm("a=b")], "encodings") == []
    found = arms.check_alike([Arm("a"), Arm("a"), Arm("b c"), Arm("?")], "encodings")
    assert [(problem.value, problem.wrong) for problem in found] == [
        ("a", "named twice"),
        ("?", "a name needs a letter or a digit"),
    ]


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
    found = arms.check_passed_on(passed_on, ("recipe", "output_dir"))
    assert [problem.field for problem in found] == fields


def test_fields_that_arms_have_to_share():
    recipes = {name: pretraining.load(["--eval_tokens", text], 1) for name, text in (("a", "4096"), ("b", "8192"))}
    (problem,) = arms.unequal(recipes, ["train_data", "eval_tokens"])
    assert (problem.field, problem.value) == ("eval_tokens", "a: 4096, b: 8192")
