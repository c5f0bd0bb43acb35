"""``python -m tools.experiments.visualise``: maps of the positions and attention that models compute."""

import numpy as np
import torch

from tape_ds import TapeForCausalLM, results
from tape_ds.scoring.inspection import inspect
from tests.export.conftest import base
from tests.models.helpers import tiny_model
from tests.tools.helpers import saved
from tools.experiments import visualise

__all__ = ["base"]
PNG = b"\x89PNG\r\n\x1a\n"
IDS = [*range(3, 10), *range(30, 43)]
PROMPT = " ".join(f"w{each}" for each in IDS)
"""Twenty words, none that begins like a special one (w1, w2)."""


def test_pictures_show_what_two_models_computed(tmp_path, base, monkeypatch):
    drawn, draw, output = {}, visualise.draw, tmp_path / "out"
    monkeypatch.setattr(
        visualise, "draw", lambda kind, path: drawn.update({path.name: kind}) or draw(kind, path)
    )
    tape, rope = (
        saved(tiny_model(encoding=name), base, tmp_path / name) for name in ("tape", "rope")
    )
    arguments = [str(tape), "--against", f"plain={rope}", "--prompt", PROMPT, "--heads", "1", "3"]
    assert visualise.main([*arguments, "--output", str(output)]) == 0
    assert {path.name for path in output.iterdir()} == {*drawn, "visualise.json"}
    result = results.load(output / "visualise.json")
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
    assert np.allclose(
        states["layer 2", "heads 3 to 4"], seen["view"].positions.matrix()[1], atol=1e-5
    )
    assert set(result.figures["attention_l1_between_models"]) == {"1", "2", "3"}


def test_an_encoding_without_positions_has_attention_alone(tmp_path, base, monkeypatch, capsys):
    monkeypatch.setattr(visualise, "draw", lambda kind, path: None)
    folder = saved(tiny_model(encoding="nope"), base, tmp_path / "nope")
    assert visualise.main([str(folder), "--prompt", PROMPT, "--output", str(tmp_path / "out")]) == 0
    assert "nope: no map of positions: no layer rotates" in capsys.readouterr().out
    figures = results.load(tmp_path / "out" / "visualise.json").figures
    assert figures["models"][0]["positions"].startswith("none: ")
