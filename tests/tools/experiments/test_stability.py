"""``python -m tools.experiments.stability``: tables of any models beside the published ones, and what it refuses."""

import csv
import json
import math

import pytest
import torch

from tape_ds import results
from tape_ds.models import convert
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
        (tmp_path / f"{name}.txt").write_text(" ".join(f"w{WORDS[step * place % len(WORDS)]}" for place in range(60)))
    return f"text:{tmp_path}/*.txt"


@pytest.fixture
def broken(base, tmp_path):
    """A model folder of a form that is not equivariant, with the tokenizer of ``base``."""
    return saved(tiny_model(encoding="tape flattened"), base, tmp_path / "flattened")


def written(output, *arguments):
    """Runs the command and gives its result and its csv's rows."""
    assert stability.main([*map(str, arguments), "--tokens", "40", "--output", str(output)]) == 0
    return results.load(output / "stability.json"), list(csv.DictReader((output / "stability.csv").open()))


def test_a_run_and_a_plain_llama_are_stable_and_a_broken_form_is_not(tmp_path, base, run, broken, text):
    result, rows = written(tmp_path / "out", f"plain={base}", f"tape={run()}", broken, "--texts", text)
    assert [each["name"] for each in result.figures["models"]] == ["plain", "tape", "flattened"]
    assert result.figures["layers"] == [1, 2] and [len(each["texts"]) for each in result.figures["models"]] == [2] * 3
    last = {
        row["model"]: {name: float(row[name]) for name in stability.FIGURES}
        for row in rows
        if (row["treatment"], row["layer"]) == ("shift_ids", "2")
    }
    assert all(last[name]["attention_l1"] < 1e-5 for name in ("plain", "tape")), last
    assert last["flattened"]["attention_l1"] > 1e-3 and last["flattened"]["positions_percent"] > 0.1
    assert result.figures["models"][1]["model"]["encoding"] == "tape"
    assert list(result.data) == [text] and result.command[0] == "stability.py"


def test_an_encoding_without_positions_says_so(tmp_path, base, text, capsys):
    folder = saved(tiny_model(encoding="nope"), base, tmp_path / "nope")
    result, rows = written(tmp_path / "out", folder, "--texts", text)
    assert {row["positions_percent"] for row in rows} == {""}
    assert "nope: no layer rotates queries and keys" in capsys.readouterr().out
    assert result.figures["models"][0]["mean"]["shift_ids"]["layers"]["1"]["positions_percent"] is None


def test_wider_weights_leave_less_rounding(tmp_path, base, text):
    narrow, wide = (
        float(written(tmp_path / dtype, base, "--texts", text, "--dtype", dtype)[1][-1]["attention_l1"])
        for dtype in ("bfloat16", "float64")
    )
    assert wide < 1e-6 < 1e-4 < narrow


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--layers", "0"], "--layers"),
        (["--layers", "4"], "--layers"),
        (["--tokens", "1"], "--tokens"),
        (["--texts", "nothing:here"], "--texts"),
        (["--texts", "TEXT", "--tokens", "61"], "--texts"),
        (["no/such/folder"], "model"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(tmp_path, base, text, capsys, arguments, field):
    given = [text if each == "TEXT" else each for each in arguments]
    given = [*given, str(base)] if given[0] == "no/such/folder" else [str(base), *given]
    assert stability.main([*given, "--output", str(tmp_path / "out")]) == 2
    assert f" {field} = " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder_for_results_and_that_is_said_before_work(tmp_path, base, text, capsys):
    (tmp_path / "taken").write_text("mine")
    assert stability.main([str(base), "--texts", text, "--output", str(tmp_path / "taken" / "out")]) == 2
    assert " --output = " in capsys.readouterr().err


def test_two_models_of_one_name_are_told_apart_by_hand(base, text, capsys):
    assert stability.main([str(base), str(base), "--texts", text]) == 2
    assert "NAME=MODEL" in capsys.readouterr().err


def test_a_tokenizer_without_bos_is_refused(tmp_path, base, text, capsys):
    folder = saved(convert.to_plain(tiny_model(encoding="rope")), base, tmp_path / "without")
    for file in folder.glob("*token*"):
        content = json.loads(file.read_text())
        content.pop("bos_token", None)
        file.write_text(json.dumps(content))
    assert stability.main([str(folder), "--texts", text]) == 2
    assert "has no BOS" in capsys.readouterr().err


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
    assert model["mean"]["add_tokens"]["layers"]["1"]["attention_l1"] == pytest.approx(sum(each) / 2)


def test_a_layer_named_twice_is_one(tmp_path, base, text):
    result, _ = written(tmp_path / "out", base, "--texts", text, "--layers", "2", "1", "2")
    assert result.figures["layers"] == [1, 2]


def test_a_model_that_is_not_finite_is_refused(tmp_path, base, text, capsys):
    model = tiny_model(encoding="tape")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = math.nan
    folder = saved(model, base, tmp_path / "broken")
    assert stability.main([str(folder), "--texts", text, "--tokens", "40", "--output", str(tmp_path / "out")]) == 2
    assert "not finite" in capsys.readouterr().err and not (tmp_path / "out").exists()
