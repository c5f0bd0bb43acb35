"""``launchers/keep_alive.py`` around a real run: a rank gets SIGKILL after the first checkpoint, keep_alive gets
SIGTERM after the restart has taken some steps, and the run's own command finishes it."""

import json
import os
import re
import signal
import sys
import time

import pytest

from tape_ds import checkpoint, run_folder
from tape_ds.resilience import run_lock
from tests.integration.conftest import forked
from tests.processes import Launch, deepspeed

STEPS, SAVED = 30, 5


def arguments(folder, output) -> list[str]:
    """A model of three small layers, data-loader workers at work."""
    flags = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 330,
        "position_encoding": "rope",
        "train_data": f"text:{folder}/train*.txt",
        "eval_data": "[]",
        "data_cache": folder / "cache",
        "window": 32,
        "dataloader_num_workers": 1,
        "global_batch_size": 4,
        "per_device_train_batch_size": 1,
        "max_steps": STEPS,
        "save_steps": SAVED,
        "logging_steps": 1,
        "bf16": "false",
        "deepspeed": "zero1",
        "output_dir": output,
    }
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


def steps_logged(output) -> list[int]:
    """Steps of the whole lines of a run's metrics."""
    path = output / run_folder.METRICS
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["step"] for line in lines if "loss" in line]


def wait_for(kept, what):
    until = time.monotonic() + 120
    while not what():
        assert not kept.ended and time.monotonic() < until, kept.printed[-3000:]
        time.sleep(0.05)


def pids_of(output):
    return {holder.rank: holder.pid for holder in run_lock.living(output)}


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_rank_is_a_restart_and_a_signal_a_checkpoint_with_exit_code_0(tmp_path, processes):
    output = tmp_path / "run"
    lines = (f"def function_{i}(value):\n    return value + {i}\n" for i in range(1200))
    (tmp_path / "train0.txt").write_text("\n".join(lines))
    # which imports for half a minute
    starter = [sys.executable] if processes == 1 else deepspeed(processes)
    command = [sys.executable, "launchers/keep_alive.py", "--backoff", "0.5", *starter]
    with Launch(
        [*command, "launchers/pretrain_c4.py", *arguments(tmp_path, output)], tmp_path / "log"
    ) as kept:
        wait_for(kept, lambda: checkpoint.committed(output))
        first = pids_of(output)
        os.kill(first[processes - 1], signal.SIGKILL)
        killed_at = checkpoint.step_of(checkpoint.committed(output)[-1])
        wait_for(kept, lambda: {*pids_of(output).values()} - {*first.values(), None})
        before = len(steps_logged(output))
        wait_for(kept, lambda: len(steps_logged(output)) != before)
        kept.process.terminate()
        code, printed = kept.wait(), kept.printed
    assert code == 0, printed
    restarted = re.search(r"restarting in 0.5 s from checkpoint-(\d+)", printed)
    assert restarted is not None and int(restarted[1]) >= killed_at, printed
    held = run_folder.read_marker(output / run_folder.STOPPED)
    assert held is not None and held["reason"] == "SIGTERM", printed
    assert held["step"] in [checkpoint.step_of(each) for each in checkpoint.committed(output)]
    assert f"continues from checkpoint-{held['step']}" in printed and run_lock.named(output) == []

    again = forked(
        "launchers/pretrain_c4.py",
        *arguments(tmp_path, output),
        "--resume",
        "auto",
        processes=processes,
    )
    assert again.code == 0, again.output[-4000:]
    assert run_folder.read_marker(output / run_folder.FINISHED)["step"] == STEPS
    assert run_folder.read_marker(output / run_folder.STOPPED) is None
    assert steps_logged(output) == list(range(1, STEPS + 1)), "no step twice, none left out"
