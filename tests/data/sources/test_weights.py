"""Weights of data sources: which shares they mean, and what is wrong with a list."""

import math

import pytest

from tape_ds.cli import prepare_data
from tape_ds.config import pretraining
from tape_ds.data.sources import check_lists, weights
from tape_ds.errors import UserError

GOOD = {"source": "stdlib:ast.py", "weight": 1}
OTHER = {"source": "stdlib:ssl.py", "weight": 3.0}


def test_only_proportions_count():
    assert weights.shares_of([GOOD, OTHER]) == [0.25, 0.75]
    assert weights.specs_of([GOOD, OTHER]) == ["stdlib:ast.py", "stdlib:ssl.py"]
    assert weights.described([GOOD, OTHER]) == "25 % stdlib:ast.py, 75 % stdlib:ssl.py"
    assert check_lists([GOOD, OTHER], []) == []


def test_a_plain_list_has_none():
    assert weights.shares_of(["stdlib", "text:a"]) is None and weights.shares_of([]) is None
    assert weights.specs_of(["stdlib", "text:a"]) == ["stdlib", "text:a"]
    assert weights.described(["stdlib", "text:a"]) == "stdlib, text:a"


@pytest.mark.parametrize("weight", [0, -1, 0.0, math.nan, math.inf, 10**400, True, "1", None, [1]])
def test_a_weight_is_a_number_above_0(weight):
    (problem,) = check_lists([GOOD, OTHER | {"weight": weight}], [])
    assert (problem.field, problem.wrong) == ("train_data", "its weight is not a number above 0")
    assert problem.value == OTHER | {"weight": weight} and "remove it" in problem.remedy


@pytest.mark.parametrize(
    ("entries", "value", "wrong", "remedy"),
    [
        ([GOOD, "stdlib:ssl.py"], "stdlib:ssl.py", "no weight", "{source: stdlib:ssl.py, weight: NUMBER}"),
        ([GOOD, {"source": "stdlib:ssl.py"}], {"source": "stdlib:ssl.py"}, "not a source with a weight", "NUMBER}"),
        ([GOOD, {"weight": 1}], {"weight": 1}, "not a source with a weight", "{source: SPEC"),
        ([GOOD, OTHER | {"source": ["a"]}], OTHER | {"source": ["a"]}, "not a source with a weight", "{source: SPEC"),
        ([GOOD, OTHER | {"split": "x"}], OTHER | {"split": "x"}, "not a source with a weight", "{source: SPEC"),
        ([GOOD, OTHER, GOOD], "stdlib:ast.py", "more than once", "the sum"),
        ([GOOD, OTHER | {"source": "sdtlib"}], "sdtlib", "unknown kind", "stdlib"),
    ],
)
def test_a_mistake_is_named_alone(entries, value, wrong, remedy):
    (problem,) = check_lists(entries, [])
    assert problem.field == "train_data" and problem.value == value
    assert wrong in problem.wrong and remedy in problem.remedy


def test_all_mistakes_are_named_together():
    found = check_lists(["stdlib:no.py", GOOD | {"weight": 0, "wieght": 1}, {"weight": 1}], ["text:none"])
    assert len(found) == 5 and {problem.field for problem in found} == {"train_data", "eval_data"}


def test_what_is_trained_on_is_not_scored():
    (problem,) = check_lists([GOOD, OTHER], ["stdlib:ssl.py"])
    assert "also trained on" in problem.wrong


def test_on_the_command_line():
    words = ["--recipe", "tiny", "--train_data"]
    recipe = pretraining.load([*words, '[{"source": "stdlib:ast.py", "weight": 1}, {"source": "stdlib", "weight": 2}]'])
    assert weights.shares_of(recipe.data.train_data) == [1 / 3, 2 / 3]
    assert recipe.outline()["data"].startswith("33.33 % stdlib:ast.py, 66.67 % stdlib: sequences of 256")
    assert "  weight: 2" in recipe.to_yaml()
    with pytest.raises(UserError, match="as JSON"):
        pretraining.load([*words, '[{"source": "stdlib:ast.py", "weight": 1}'])


def test_a_corpus_is_prepared_without_weights(tmp_path, capsys):
    """They are the run's: a folder for each source."""
    words = ["--data", '{"source": "stdlib", "weight": 1}', "--tokenizer", "smollm2", "--output", str(tmp_path / "ids")]
    assert prepare_data.main(words) == 2
    assert "give weights in train_data of a recipe only" in capsys.readouterr().err
    assert not (tmp_path / "ids").exists()
