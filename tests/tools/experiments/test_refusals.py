"""Experiments on models refuse what they cannot measure, and then write nothing."""

import math

import pytest
import torch

from tests.export.conftest import base, run
from tests.models.helpers import tiny_model
from tests.tools.helpers import saved
from tools.experiments import new_decoder, pose_coverage, stability, visualise

__all__ = ["base", "run"]
PROMPT = " ".join(f"w{each}" for each in range(30, 60))


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(PROMPT)


@pytest.mark.parametrize(
    ("program", "arguments", "field"),
    [
        (pose_coverage, ["--document_tokens", "4096", "--samples", "0"], "--samples"),
        (
            pose_coverage,
            ["--document_tokens", "99", "--pose_chunks", "1", "--packing", "single"],
            "--document_tokens",
        ),
        (stability, ["BASE", "--layers", "4"], "--layers"),
        (stability, ["BASE", "--texts", "text:text.txt", "--tokens", "99"], "--texts"),
        (new_decoder, ["gemma2", "--tokenizer", "BASE", "--config", "[8]"], "--config"),
        (new_decoder, ["gemma22", "--tokenizer", "BASE"], "family"),
        (
            new_decoder,
            ["gemma2", "--tokenizer", "BASE", "--config", '{"hidden_sise": 8}'],
            "--config hidden_sise",
        ),
        (visualise, ["BASE", "--text", "nowhere.txt"], "--text"),
        (visualise, ["BASE", "--prompt", f"{PROMPT} " * 40, "--tokens", "4k"], "--tokens"),
        (visualise, ["BASE", "--text", "text.txt", "--heads", "5"], "--heads"),
        (visualise, ["BASE", "--prompt", PROMPT, "--against", "OTHER"], "--against"),
    ],
)
def test_refusals_write_nothing(program, arguments, field, tmp_path, base, capsys):
    other = saved(tiny_model(heads="mqa"), base, tmp_path / "other")
    given = [{"BASE": str(base), "OTHER": str(other)}.get(each, each) for each in arguments]
    assert program.main([*given, "--output", "out"]) == 2
    assert f" {field} " in capsys.readouterr().err.replace(":", " ").replace("=", " ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (stability, ["--texts", "text:text.txt", "--tokens", "20"]),
        (visualise, ["--prompt", PROMPT]),
    ],
)
def test_a_model_that_is_not_finite_is_refused(program, arguments, tmp_path, base, capsys):
    model = tiny_model(encoding="tape")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = math.nan
    folder = saved(model, base, tmp_path / "broken")
    assert program.main([str(folder), *arguments, "--output", "out"]) == 2
    assert "not finite" in capsys.readouterr().err and not (tmp_path / "out").exists()
