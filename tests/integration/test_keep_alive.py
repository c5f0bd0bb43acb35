"""``launchers/keep_alive.py`` around a real run: a rank is killed, somebody stops it, and it comes to its end.

One story for all tests: the run is started, a rank gets SIGKILL after the first checkpoint, keep_alive gets SIGTERM
after the restart has taken some steps, and the run's own command goes on. What keep_alive says of a run that finishes
is in ``tests/resilience/test_keep_alive.py``.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tape_ds import checkpoint, run_folder
from tape_ds.resilience import run_lock
from tests.integration.conftest import ROOT, forked

STEPS, SAVED = 30, 5


@dataclass
class Story:
    """What was seen."""

    output: Path
    killed_at: int = 0
    """The newest committed step when the rank was killed."""
    stopped: list[str] = field(default_factory=list)
    """What keep_alive said up to its stop."""
    code: int | None = None
    """Its exit code then."""
    seconds: float = 0.0
    """From the signal to its end."""
    held: dict[str, Any] | None = None
    """The marker of the stop."""
    committed: list[int] = field(default_factory=list)
    """Committed steps then."""
    left: list[run_lock.Holder] = field(default_factory=list)
    """Ranks that were left then."""


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


def keep_alive(folder, output) -> subprocess.Popen[str]:
    """``keep_alive.py deepspeed pretrain_c4.py`` as a user types it, in a session of its own."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_accelerators", "2", "--master_port", str(port)]
    return subprocess.Popen(
        [
            *(sys.executable, "launchers/keep_alive.py", "--backoff", "0.5"),
            *(*runner, "launchers/pretrain_c4.py", *arguments(folder, output)),
        ],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def steps_logged(output) -> list[int]:
    """Steps of the whole lines of a run's metrics."""
    path = output / run_folder.METRICS
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["step"] for line in lines if "loss" in line]


def wait_for(kept, what, seconds=120) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert kept.poll() is None and time.monotonic() < until, f"it did not come: {kept.poll()}"
        time.sleep(0.05)


def lines_of(printed) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("keep_alive: ")]


def end(kept) -> None:
    """SIGKILL for it and all below it."""
    if kept.poll() is None:
        for process in [*psutil.Process(kept.pid).children(recursive=True), psutil.Process(kept.pid)]:
            process.kill()
    kept.wait()


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Story:
    folder = tmp_path_factory.mktemp("kept_alive")
    lines = (f"def function_{i}(value):\n    return value + {i}\n" for i in range(1200))
    (folder / "train0.txt").write_text("\n".join(lines))
    found = Story(folder / "run")
    kept = keep_alive(folder, found.output)
    try:
        wait_for(kept, lambda: checkpoint.committed(found.output))
        killed = {holder.rank: holder.pid for holder in run_lock.living(found.output)}
        os.kill(killed[1], signal.SIGKILL)
        found.killed_at = checkpoint.step_of(checkpoint.committed(found.output)[-1])
        wait_for(kept, lambda: {holder.pid for holder in run_lock.living(found.output)} - {*killed.values(), None})
        before = len(steps_logged(found.output))
        wait_for(kept, lambda: len(steps_logged(found.output)) != before)
        begun = time.monotonic()
        kept.terminate()
        printed, _ = kept.communicate(timeout=60)
    finally:
        end(kept)
    found.seconds, found.code, found.stopped = time.monotonic() - begun, kept.returncode, lines_of(printed)
    found.held, found.left = run_folder.stopped(found.output), run_lock.named(found.output)
    found.committed = [checkpoint.step_of(each) for each in checkpoint.committed(found.output)]
    again = forked("launchers/pretrain_c4.py", *arguments(folder, found.output), "--resume", "auto")
    assert again.code == 0, again.output[-4000:]
    return found


def test_a_killed_rank_is_a_restart_from_the_newest_checkpoint(story):
    said = re.search(r"restarting in 0.5 s from checkpoint-(\d+)", story.stopped[0])
    assert said is not None and int(said[1]) >= story.killed_at, story.stopped


def test_a_signal_to_keep_alive_is_a_committed_checkpoint_and_exit_code_0(story):
    assert story.code == 0 and story.seconds < 30, story.stopped
    assert story.held is not None and story.held["reason"] == "SIGTERM" and story.held["step"] in story.committed
    assert story.stopped[-2] == "keep_alive: SIGTERM: asking the ranks to commit a checkpoint and stop"
    assert f"continues from checkpoint-{story.held['step']}" in story.stopped[-1] and story.left == []


def test_the_run_goes_on_and_finishes(story):
    assert run_folder.finished(story.output)["step"] == STEPS and run_folder.stopped(story.output) is None
    assert steps_logged(story.output) == list(range(1, STEPS + 1)), "no step twice, none left out"
