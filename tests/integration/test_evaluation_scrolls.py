"""Answers of two processes, killed while they write and taken up by one, are those of an unbroken start."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import ROOT, kill

QUESTIONS = 24


@pytest.fixture
def command(tiny):
    """Starts the command as a user types it, in a process group of its own."""

    def start(folder: Path, processes: int) -> subprocess.Popen[str]:
        several = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        words = ["-m", "evaluation", "scrolls", "generate", str(tiny / "model"), "--output", str(folder)]
        limits = ["--max_tokens", "192", "--answer_tokens", "48", "--batch_size", "2"]
        questions = ["--datasets", "stdlib", "--limit", str(QUESTIONS)]
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        return subprocess.Popen(
            [sys.executable, *(several if processes > 1 else []), *words, *limits, *questions],
            cwd=ROOT,
            env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


def ended(running: subprocess.Popen[str]) -> str:
    try:
        output, _ = running.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        kill_all(running)
        raise
    assert running.returncode == 0, output
    return output


def kill_all(running: subprocess.Popen[str]) -> None:
    """``kill -9`` for a launch: torchrun puts each worker into a session of its own, out of the group's reach."""
    workers = psutil.Process(running.pid).children(recursive=True)
    kill(running)
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    psutil.wait_procs(workers, timeout=30)


def journalled(folder: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in folder.glob(".*/*.jsonl"))


def result(folder: Path) -> dict:
    content = json.loads((folder / "scrolls.json").read_text())
    for name in ("command", "started", "finished", "hardware"):
        content.pop(name)
    content["figures"].pop("cost")
    return content


@pytest.mark.slow
def test_killed_on_two_processes_and_finished_on_one(command, tmp_path):
    broken = command(tmp_path / "broken", 2)
    deadline = time.monotonic() + 90
    while journalled(tmp_path / "broken") < 2:
        assert broken.poll() is None and time.monotonic() < deadline, "it ended before it could be killed"
        time.sleep(0.01)
    kill_all(broken)
    known = journalled(tmp_path / "broken")
    pieces = QUESTIONS // 2
    assert 2 <= known < pieces and not (tmp_path / "broken" / "scrolls.json").exists()
    again, whole = command(tmp_path / "broken", 1), command(tmp_path / "whole", 2)
    assert f"scrolls: {known} of {pieces} pieces are known" in ended(again)
    ended(whole)
    texts = [(tmp_path / name / "scrolls" / "stdlib.json").read_bytes() for name in ("broken", "whole")]
    assert texts[0] == texts[1] and len(json.loads(texts[0])) == QUESTIONS
    assert len(set(json.loads(texts[0]).values())) > QUESTIONS // 2, "the texts differ, so that an exchange would show"
    assert result(tmp_path / "broken") == result(tmp_path / "whole")
    assert [path.name for path in (tmp_path / "broken").glob(".*")] == []
