"""``tape-ds export``: what it writes, what it warns of, and all its problems in one message."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tape_ds.cli import export
from tape_ds.engines import table
from tape_ds.export import config_json
from tests.models.helpers import tiny_model, tokens

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}


@pytest.fixture
def source(tmp_path):
    """A TAPE model's folder."""
    tiny_model().save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def test_all_problems_are_in_one_message(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    arguments = [
        str(tmp_path / "nowhere"),
        str(tmp_path / "out"),
        "--license",
        "All Rights Reserved",
    ]
    assert export.main(arguments) == 2
    said = capsys.readouterr().err
    assert "3 problems" in said


def test_name_licence_and_dtype_reach_the_folder(source, tmp_path):
    out = tmp_path / "out"
    assert (
        export.main(
            [str(source), str(out), "--dtype", "bfloat16", "--name", "Tiny", "--license", "mit"]
        )
        == 0
    )
    assert export.main([str(source), str(tmp_path / "a" / "out")]) == 2, "no folder around it"
    card = (out / "README.md").read_text()
    assert "# Tiny\n" in card and "license: mit" in card
    model, original = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (out, source)
    )
    ids = tokens(1, 9)
    with torch.no_grad():
        # bf16 has 8 bits: weights of 0.15 are off by 3e-4 each, over 32 channels and 3 layers
        assert (model(ids).logits - original(ids).logits).abs().max() < 0.05


@pytest.mark.parametrize("beta_slow", [1.0, 2.0])
def test_settings_that_llama_cpp_drops_are_named(tmp_path, capsys, beta_slow):
    """Its converter takes any YaRN, with log-probabilities that are off by 0.7 to 6 without the flags."""
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 32,
    }
    bounds = {"beta_fast": 32, "beta_slow": beta_slow, "truncate": True}
    tiny_model(encoding="rope", rope_parameters=yarn | bounds).save_pretrained(tmp_path / "source")
    assert export.main([str(tmp_path / "source"), str(tmp_path / "out")]) == 0
    for text in (capsys.readouterr().out, (tmp_path / "out" / "README.md").read_text()):
        said = text.replace("`", "")  # code, in the card
        assert (
            "--yarn-beta-fast 32 --yarn-beta-slow 2.0 (it reads them from no file)" in said
        ) == (beta_slow != 1.0)


SCALED = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "yarn": YARN,
    "exact ramp": {**YARN, "truncate": False},
    "attention": {**YARN, "attention_factor": 1.0},
    "llama3": {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


@pytest.mark.parametrize("scaling", SCALED)
def test_what_an_engine_computes_wrongly_is_refused_before_anything_is_written(
    tmp_path, capsys, scaling
):
    """All such engines in one message, and none of the others; forced, the folder is that of an export without it."""
    rope_parameters = {"rope_theta": 1e4, **SCALED[scaling]}
    tiny_model(encoding="rope", rope_parameters=rope_parameters).save_pretrained(
        tmp_path / "source"
    )
    arguments = [str(tmp_path / "source"), str(tmp_path / "out"), "--check", *table.engines()]
    served = config_json.planned(AutoConfig.from_pretrained(tmp_path / "source"))
    wrong = [each for each in table.verdicts(served) if each.result == "wrong"]
    assert wrong, "an engine that computes it wrongly"
    assert export.main(arguments) == 2
    said = capsys.readouterr().err
    assert (
        f"{len(wrong)} problem{'s' * (len(wrong) > 1)} found" in said
        and not (tmp_path / "out").exists()
    )
    assert all(f"--check = '{each.engine.name}': {each}" in said for each in wrong)
    assert "serve it by one of vllm, " in said

    assert export.main([*arguments, "--check_anyway"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {each}\n" in printed for each in table.verdicts(served)), (
        "each engine that is checked"
    )
    assert printed.index("other engines: right by") < printed.index(str(tmp_path / "out")), (
        "before it is written"
    )
    assert export.main([*arguments[:2], "--name", "out"]) == 2, "there is one"
    assert export.main([arguments[0], str(tmp_path / "plainly"), "--name", "out"]) == 0
    written = [
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("out", "plainly")
    ]
    assert written[0] == written[1]
    assert {key: written[0][key] for key in served} == served, (
        "what was checked is what was written"
    )


def test_an_unknown_engine_is_an_error_with_the_list(source, tmp_path, capsys):
    assert export.main([str(source), str(tmp_path / "out"), "--check", "vlm", "sglang"]) == 2
    said = capsys.readouterr().err
    assert "--check = 'vlm': no engine of the table" in said and "did you mean 'vllm'?" in said
    assert export.main([str(source), str(tmp_path / "out"), "--check", "tgi"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in table.engines())


def test_a_push_without_a_token_writes_nothing(source, tmp_path, monkeypatch):
    monkeypatch.setattr("tape_ds.export.folder.get_token", lambda: None)
    assert export.main([str(source), str(tmp_path / "out"), "--push", "tiny"]) == 2
    assert not (tmp_path / "out").exists()


def test_a_push_uploads_what_was_written(source, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr("tape_ds.export.folder.check_push", lambda name: [])
    monkeypatch.setattr(
        "tape_ds.export.folder.push",
        lambda name, folder: seen.update({name: sorted(p.name for p in folder.iterdir())}),
    )
    assert export.main([str(source), str(tmp_path / "out"), "--push", "me/tiny"]) == 0
    assert {"README.md", "config.json", "model.safetensors", "modeling_tape.py"} <= set(
        seen["me/tiny"]
    )
