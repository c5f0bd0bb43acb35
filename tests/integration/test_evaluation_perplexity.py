"""Perplexity as a user types it: two processes find what one does, and go on after ``kill -9``."""

import json
import time

import pytest

from tape_ds import results
from tape_ds.cli.evaluate import perplexity
from tests.integration.conftest import forked, start


@pytest.fixture
def arguments(tiny, tmp_path, monkeypatch):
    """Windows that overlap on a held-out text, a job for each of six lengths; a fresh cache of tokenised text."""
    monkeypatch.setenv("HOME", str(tmp_path))
    data = ("--data", f"text:{tiny}/held_out.txt", "--max_tokens", "2k", "--spans", "16")
    lengths = map(str, (24, 32, 40, 48, 56, 64))
    return [str(tiny / "model"), *data, "--lengths", *lengths, "--convention", "all_tokens", "--stride", "16"]


def figures(folder):
    found = dict(results.load(folder / "perplexity.json").figures)
    assert found.pop("cost")["peak_memory_bytes"] > 0
    return json.dumps(found)


@pytest.mark.slow
def test_two_processes_that_were_killed_find_what_one_does(arguments, tmp_path):
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    words = ["perplexity", *arguments, "--output", str(killed)]
    with start(tmp_path / "log", "--module", "evaluation", *words) as running:
        while not running.ended and not any(path.stat().st_size for path in killed.glob(".*/*.jsonl")):
            time.sleep(0.01)
    assert not (killed / "perplexity.json").exists(), "it was killed at its first line"
    ended = forked("evaluation/__main__.py", *words)
    assert ended.code == 0 and "pieces are known" in ended.output, ended.output
    assert perplexity.main([*arguments, "--output", str(alone)]) == 0
    assert figures(killed) == figures(alone)
