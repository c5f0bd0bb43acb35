"""``python -m tools.experiments.visualise``: maps of the positions and attention that models compute."""

import math

import numpy as np
import pytest
import torch

from tape_ds import TapeForCausalLM, results
from tape_ds.scoring.inspection import inspect
from tests.export.conftest import base, run
from tests.models.helpers import tiny_model
from tests.tools.helpers import saved
from tools.experiments import visualise

__all__ = ["base", "run"]
PNG = b"\x89PNG\r\n\x1a\n"
IDS = [*range(3, 10), *range(30, 43)]
PROMPT = " ".join(f"w{each}" for each in IDS)
"""Twenty words, none that begins like a special one (w1, w2)."""


def folder_of(name, base, tmp_path):
    """A model folder of an encoding, with the tokenizer of ``base``."""
    return saved(tiny_model(encoding=name), base, tmp_path / name)


@pytest.fixture
def written(monkeypatch):
    """Runs the command and gives its result, and the maps that it drew by the names of their files."""
    drawn = {}
    draw = visualise.draw
    monkeypatch.setattr(visualise, "draw", lambda kind, path: drawn.update({path.name: kind}) or draw(kind, path))

    def run_(output, *arguments):
        drawn.clear()
        assert visualise.main([*map(str, arguments), "--output", str(output)]) == 0
        assert {path.name for path in output.iterdir()} == {*drawn, "visualise.json"}
        return results.load(output / "visualise.json"), dict(drawn)

    return run_


def test_pictures_show_what_two_models_computed(tmp_path, base, written):
    tape, rope = (folder_of(name, base, tmp_path) for name in ("tape", "rope"))
    output = tmp_path / "out"
    arguments = ["--against", f"plain={rope}", "--prompt", PROMPT, "--heads", 1, 3]
    result, drawn = written(output, tape, *arguments)
    assert {file: kind.name for file, kind in drawn.items()} == {
        "positions.png": "positions: tape",
        "attention.png": "attention: tape",
        "difference.png": "attention: tape minus plain",
    }
    assert all((output / file).read_bytes().startswith(PNG) for file in drawn)
    seen = {}
    model = TapeForCausalLM.from_pretrained(tape).eval()
    inspect(model, torch.tensor(IDS), [2], lambda view: seen.update(view=view))
    attention, weights_HTT = drawn["attention.png"].maps, seen["view"].weights_HTS
    assert np.allclose(attention["layer 2", "head 3"], weights_HTT[2], atol=1e-6)
    assert np.allclose(attention["layer 2", "mean"], weights_HTT.mean(dim=0), atol=1e-6)
    states = drawn["positions.png"].maps
    assert np.allclose(states["layer 2", "heads 3 to 4"], seen["view"].positions.matrix()[1], atol=1e-5)
    assert set(result.figures["attention_l1_between_models"]) == {"1", "2", "3"}


def test_chosen_layers_and_heads_are_drawn(tmp_path, base, written):
    (tmp_path / "text.txt").write_text(PROMPT)
    chosen = ["--text", tmp_path / "text.txt", "--tokens", "9", "--layers", "3", "1", "3", "--heads", "4"]
    result, drawn = written(tmp_path / "out", base, *chosen)
    assert result.figures["tokens"] == 9
    panels = [("layer 1", "mean"), ("layer 1", "head 4"), ("layer 3", "mean"), ("layer 3", "head 4")]
    assert list(drawn["attention.png"].maps) == panels


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--prompt", "w3"], "--prompt"),
        (["--text", "nowhere.txt"], "--text"),
        (["--prompt", f"{PROMPT} " * 60, "--tokens", "4k"], "--tokens"),
        (["--prompt", PROMPT, "--heads", "5"], "--heads"),
        (["--prompt", PROMPT, "--layers", "9"], "--layers"),
        (["--prompt", PROMPT, "--against", "OTHER"], "--against"),
    ],
)
def test_refusals_write_nothing(tmp_path, base, capsys, arguments, field):
    other = saved(tiny_model(heads="mqa"), base, tmp_path / "other")
    given = [str(other) if each == "OTHER" else each for each in arguments]
    assert visualise.main([str(base), *given, "--output", str(tmp_path / "out")]) == 2
    assert f" {field} = " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_finite_leaves_nothing_half_written(tmp_path, base, capsys):
    folder = folder_of("tape", base, tmp_path)
    model = TapeForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = math.nan
    model.save_pretrained(folder)
    assert visualise.main([str(folder), "--prompt", PROMPT, "--output", str(tmp_path / "out")]) == 2
    assert "not finite" in capsys.readouterr().err and not (tmp_path / "out").exists()
