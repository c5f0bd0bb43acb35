"""The command: every mistake in one message before anything loads, and what it says when it is done."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tape_ds.cli import export
from tests.models.helpers import tiny_model, tokens


@pytest.fixture
def source(tmp_path):
    """A TAPE model's folder."""
    tiny_model().save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def test_all_mistakes_come_in_one_message(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    arguments = [str(tmp_path / "nowhere"), str(tmp_path / "out"), "--license", "All Rights Reserved"]
    assert export.main(arguments) == 2
    said = capsys.readouterr().err
    assert all(each in said for each in ("3 problems", "exists", "no such folder", "not an id of a licence"))


def test_a_folder_around_it_must_be_there(source, tmp_path, capsys):
    assert export.main([str(source), str(tmp_path / "a" / "out")]) == 2
    assert "the folder around it does not exist" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_it_exports_and_says_what(source, tmp_path, capsys):
    out = tmp_path / "out"
    assert export.main([str(source), str(out), "--dtype", "bfloat16", "--name", "Tiny", "--license", "mit"]) == 0
    said = capsys.readouterr().out
    for expected in ("torch.bfloat16", "with its own code, modeling_tape.py", "without results", "no tokenizer"):
        assert expected in said
    card = (out / "README.md").read_text()
    assert "# Tiny\n" in card and "license: mit" in card
    model, original = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (out, source))
    ids = tokens(1, 9)
    with torch.no_grad():
        # bf16 has 8 bits: weights of 0.15 are off by 3e-4 each, over 32 channels and 3 layers
        assert (model(ids).logits - original(ids).logits).abs().max() < 0.05


@pytest.mark.parametrize(
    "changes, unread",
    [
        ({}, None),
        ({"beta_fast": 32, "truncate": True}, None),
        ({"beta_slow": 2.0, "truncate": False}, "beta_slow, truncate"),
    ],
    ids=str,
)
def test_it_says_what_llama_cpp_leaves_out(tmp_path, capsys, changes, unread):
    """Its converter takes any YaRN, and its log-probabilities were off by 0.7 to 6 with such settings."""
    rope_parameters = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 32,
        **changes,
    }
    tiny_model(encoding="rope", rope_parameters=rope_parameters).save_pretrained(tmp_path / "source")
    assert export.main([str(tmp_path / "source"), str(tmp_path / "out")]) == 0
    for said in (capsys.readouterr().out, (tmp_path / "out" / "README.md").read_text()):
        assert ("computes other angles" in said) == (unread is not None)
        assert unread is None or f"it does not read {unread} (" in said


def test_a_push_without_a_token_starts_nothing(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tape_ds.export.folder.get_token", lambda: None)
    assert export.main([str(source), str(tmp_path / "out"), "--push", "tiny"]) == 2
    assert "no token for the hub" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_push_uploads_what_was_written(source, tmp_path, capsys, monkeypatch):
    seen = {}
    monkeypatch.setattr("tape_ds.export.folder.check_push", lambda name: [])
    monkeypatch.setattr(
        "tape_ds.export.folder.push", lambda name, folder: seen.update({name: sorted(p.name for p in folder.iterdir())})
    )
    assert export.main([str(source), str(tmp_path / "out"), "--push", "me/tiny"]) == 0
    assert {"README.md", "config.json", "model.safetensors", "modeling_tape.py"} <= set(seen["me/tiny"])
    assert "uploaded to" in capsys.readouterr().out
