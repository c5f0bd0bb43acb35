"""Passkeys as a person starts them: several processes, and lm-eval's own command."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tape_ds.cli.evaluate import passkey
from tests.integration.conftest import ROOT, launch

ASKED = ["--lengths", "400", "500", "--depths", "0", "0.5", "1", "--trials", "1"]


def evaluated(folder):
    """Everything in a result but when, how long and by which command."""
    result = json.loads((folder / "passkey.json").read_text())
    result["figures"].pop("cost")
    return {name: result[name] for name in ("figures", "config", "model", "data", "seed")}


@pytest.mark.slow
def test_two_processes_give_what_one_gives(tiny, tmp_path, capsys):
    """Six prompts, three for each process of DeepSpeed's launcher; then all of them in this one."""
    words = [str(tiny / "model"), *ASKED, "--output"]
    two = launch("--module", "evaluation", "passkey", *words, str(tmp_path / "two"))
    assert two.code == 0, two.output
    assert passkey.main([*words, str(tmp_path / "one")]) == 0
    assert evaluated(tmp_path / "two") == evaluated(tmp_path / "one")
    for name in ("passkey.csv", "passkey.md", "passkey.png"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert two.output.count("written: ") == 1, "one process speaks"
    table = re.search(r"\| depth.*?\n\n", capsys.readouterr().out, re.DOTALL)[0]
    assert table in two.output


@pytest.mark.slow
def test_plain_lm_eval_runs_the_task(tiny, tmp_path):
    """Nothing of this project but its folder of tasks is named; the model's arguments name the tokenizer."""
    model = f"pretrained={tiny / 'model'},max_length=600,dtype=float32"
    asked = json.dumps({"lengths": [400, 500], "depths": [0, 1], "trials": 1})
    command = [
        *["lm_eval", "--model", "hf", "--model_args", model, "--device", "cpu", "--batch_size", "1"],
        *["--tasks", "tape_passkey", "--include_path", "tape_ds/scoring/tasks", "--metadata", asked],
        *["--output_path", str(tmp_path), "--log_samples"],
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (stored,) = tmp_path.rglob("results_*.json")
    scores = json.loads(stored.read_text())["results"]["tape_passkey"]
    assert {name for name in scores if name.endswith(",none") and "stderr" not in name} == {
        f"{rule}{length},none" for rule in ("exact_match", "exact_ids") for length in ("", "_400", "_500")
    }
    (samples,) = tmp_path.rglob("samples_*.jsonl")
    read = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(read) == 4 and all(Path(each["doc"]["tokenizer"]) == tiny / "model" for each in read)
    assert "truncat" not in done.stderr, "prompt and reply have room"
