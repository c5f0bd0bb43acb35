"""``tape-ds export``: what it writes, what it warns of, and all its problems in one message."""

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


def test_all_problems_are_in_one_message(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    arguments = [str(tmp_path / "nowhere"), str(tmp_path / "out"), "--license", "All Rights Reserved"]
    assert export.main(arguments) == 2
    said = capsys.readouterr().err
    assert "3 problems" in said


def test_name_licence_and_dtype_reach_the_folder(source, tmp_path):
    out = tmp_path / "out"
    assert export.main([str(source), str(out), "--dtype", "bfloat16", "--name", "Tiny", "--license", "mit"]) == 0
    assert export.main([str(source), str(tmp_path / "a" / "out")]) == 2, "no folder around it"
    card = (out / "README.md").read_text()
    assert "# Tiny\n" in card and "license: mit" in card
    model, original = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (out, source))
    ids = tokens(1, 9)
    with torch.no_grad():
        # bf16 has 8 bits: weights of 0.15 are off by 3e-4 each, over 32 channels and 3 layers
        assert (model(ids).logits - original(ids).logits).abs().max() < 0.05


@pytest.mark.parametrize(
    "changes, unread", [({"beta_fast": 32, "truncate": True}, None), ({"beta_slow": 2.0}, "beta_slow")], ids=str
)
def test_settings_that_llama_cpp_ignores_are_named(tmp_path, capsys, changes, unread):
    """Its converter takes any YaRN, with log-probabilities that are off by 0.7 to 6 with such settings."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32}
    tiny_model(encoding="rope", rope_parameters=yarn | changes).save_pretrained(tmp_path / "source")
    assert export.main([str(tmp_path / "source"), str(tmp_path / "out")]) == 0
    for text in (capsys.readouterr().out, (tmp_path / "out" / "README.md").read_text()):
        assert ("computes other angles" in text) == (unread is not None)
        assert unread is None or f"it does not read {unread} (" in text


def test_a_push_without_a_token_writes_nothing(source, tmp_path, monkeypatch):
    monkeypatch.setattr("tape_ds.export.folder.get_token", lambda: None)
    assert export.main([str(source), str(tmp_path / "out"), "--push", "tiny"]) == 2
    assert not (tmp_path / "out").exists()


def test_a_push_uploads_what_was_written(source, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr("tape_ds.export.folder.check_push", lambda name: [])
    monkeypatch.setattr(
        "tape_ds.export.folder.push", lambda name, folder: seen.update({name: sorted(p.name for p in folder.iterdir())})
    )
    assert export.main([str(source), str(tmp_path / "out"), "--push", "me/tiny"]) == 0
    assert {"README.md", "config.json", "model.safetensors", "modeling_tape.py"} <= set(seen["me/tiny"])
