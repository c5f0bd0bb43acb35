"""Samples under ZeRO-3 on two processes, by the real launcher: both write together, and no loss changes."""

import json
import os
import subprocess
import sys

import pytest

from tests.integration.conftest import ROOT
from tests.processes import free_port

SHORT = ["--max_steps", "4", "--save_strategy", "no", "--logging_steps", "1", "--max_digits", "2"]
SMALL = ["--per_device_train_batch_size", "8", "--global_batch_size", "16", "--held_out_samples", "0"]
ASKED = ["--sample_prompts", '["12+7=", "3+"]', "--sample_steps", "2", "--sample_tokens", "4"]


def train(folder, *more):
    runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_accelerators", "2"]
    script = ["--master_port", str(free_port()), str(ROOT / "launchers" / "train_arithmetic.py")]
    recipe = ["--recipe", "addition_tiny", "--deepspeed", "zero3", "--output_dir", str(folder)]
    done = subprocess.run(
        [*runner, *script, *recipe, *SHORT, *SMALL, *more],
        cwd=folder.parent,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_all_ranks_write_and_no_loss_changes(tmp_path):
    _, plain = train(tmp_path / "plain")
    said, sampled = train(tmp_path / "sampled", *ASKED)
    assert sampled == plain and len(plain) == 4
    assert [said.count(f"sample at step {step}: '12+7='") for step in (2, 3, 4)] == [1, 0, 1]
