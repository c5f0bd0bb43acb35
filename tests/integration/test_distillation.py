"""Distillation by the real launcher: two processes, ZeRO-2, sequences longer than the native window."""

import json
import shutil

import pytest

from tape_ds.checkpoint.trained import load_trained
from tests.integration.conftest import forked
from tests.integration.test_extend_llama import SCRIPT, arguments, metrics


def words(tiny, output):
    """Sequences of 96 tokens of a model that knows 64, its RoPE not scaled: TAPE begins as the untouched model."""
    found = arguments(tiny, output)
    at = found.index("--rope_parameters.original_max_position_embeddings")
    del found[at : at + 2]
    changes = {"rope_parameters": "{}", "pose_chunks": 1, "window": 96, "packing": "single", "deepspeed": "zero2"}
    changes |= {"distill": "true", "distill_weight": 0.25, "passkey_lengths": "[]", "eval_before": "false"}
    for name, value in changes.items():
        if f"--{name}" in found:
            found[found.index(f"--{name}") + 1] = str(value)
        else:
            found += [f"--{name}", str(value)]
    return found


@pytest.fixture(scope="module")
def output(tiny, tmp_path_factory):
    """Folder of the run."""
    output = tmp_path_factory.mktemp("distilled")
    ended = forked(SCRIPT, *words(tiny, output))
    assert ended.code == 0, ended.output[-4000:]
    return output


def test_both_parts_are_logged_and_the_first_divergence_is_none(output):
    lines = metrics(output)
    assert len(lines) == 6 and abs(lines[0]["divergence"]) < 1e-5, "TAPE's updates start at zero"
    assert all(line["divergence"] > 1e-4 for line in lines[2:])
    for line in lines:
        assert line["loss"] == pytest.approx(0.75 * line["cross_entropy"] + 0.25 * line["divergence"], abs=1e-5)
    assert lines[-1]["cross_entropy"] < lines[0]["cross_entropy"]


def test_nothing_of_the_teacher_is_saved(output):
    names = load_trained(output / "trained").state_dict().keys()
    assert not any("teacher" in name for name in names)
    identity = json.loads((output / "checkpoint-6" / "manifest.json").read_text())["identity"]
    assert identity["recipe.distill_weight"] == 0.25


@pytest.mark.slow
def test_resumed_equals_uninterrupted(output, tiny, tmp_path):
    shutil.copytree(output / "checkpoint-3", tmp_path / "checkpoint-3")
    ended = forked(SCRIPT, *words(tiny, tmp_path), "--resume_from_checkpoint", str(tmp_path / "checkpoint-3"))
    assert ended.code == 0, ended.output[-4000:]
    kept = ("step", "loss", "grad_norm", "cross_entropy", "divergence")
    mine, theirs = ([[line[name] for name in kept] for line in metrics(folder)] for folder in (tmp_path, output))
    assert mine == theirs[3:]
