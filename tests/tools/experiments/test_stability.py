"""``python -m tools.experiments.stability``: figures of any models, and refusals."""

import csv

import pytest

from tape_ds import results
from tests.export.conftest import base, run
from tests.models.helpers import tiny_model
from tests.tools.helpers import saved
from tools.experiments import stability

__all__ = ["base", "run"]
WORDS = [*range(3, 10), *range(30, 61)]
"""Of the tokenizer; none that begins like a special one (w1, w2)."""


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path):
    """Data spec of two texts of 60 tokens."""
    for name, step in (("one", 7), ("two", 11)):
        (tmp_path / f"{name}.txt").write_text(
            " ".join(f"w{WORDS[step * place % len(WORDS)]}" for place in range(60))
        )
    return f"text:{tmp_path}/*.txt"


@pytest.fixture
def broken(base, tmp_path):
    """A model folder of a form that is not equivariant, with the tokenizer of ``base``."""
    return saved(tiny_model(encoding="tape flattened"), base, tmp_path / "flattened")


def written(output, *arguments):
    """Runs the command and gives its result and its csv's rows."""
    assert stability.main([*map(str, arguments), "--tokens", "40", "--output", str(output)]) == 0
    return results.load(output / "stability.json"), list(
        csv.DictReader((output / "stability.csv").open())
    )


def test_a_run_and_a_plain_llama_are_stable_and_a_broken_form_is_not(
    tmp_path, base, run, broken, text
):
    result, rows = written(
        tmp_path / "out", f"plain={base}", f"tape={run()}", broken, "--texts", text
    )
    assert [each["name"] for each in result.figures["models"]] == ["plain", "tape", "flattened"]
    assert (
        result.figures["layers"] == [1, 2]
        and [len(each["texts"]) for each in result.figures["models"]] == [2] * 3
    )
    last = {
        row["model"]: {name: float(row[name]) for name in stability.FIGURES}
        for row in rows
        if (row["treatment"], row["layer"]) == ("shift_ids", "2")
    }
    assert all(last[name]["attention_l1"] < 1e-5 for name in ("plain", "tape")), last
    assert last["flattened"]["attention_l1"] > 1e-3 and last["flattened"]["positions_percent"] > 0.1
    assert result.figures["models"][1]["model"]["encoding"] == "tape"
    assert list(result.data) == [text] and result.command[0] == "stability.py"


def test_files_of_one_name_in_two_folders_are_two_texts(tmp_path, base):
    for name, step in (("a", 7), ("b", 11)):
        (tmp_path / name).mkdir()
        words = (f"w{WORDS[step * place % len(WORDS)]}" for place in range(60))
        (tmp_path / name / "same.txt").write_text(" ".join(words))
    both = [f"text:{tmp_path}/{name}/*.txt" for name in ("a", "b")]
    result, _ = written(tmp_path / "out", base, "--texts", *both)
    (model,) = result.figures["models"]
    assert list(model["texts"]) == [f"{spec} same.txt" for spec in both]
    each = [text["add_tokens"]["layers"]["1"]["attention_l1"] for text in model["texts"].values()]
    assert each[0] != each[1]
    assert model["mean"]["add_tokens"]["layers"]["1"]["attention_l1"] == pytest.approx(
        sum(each) / 2
    )
