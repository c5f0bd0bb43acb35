"""The arithmetic grid as a user types it: two processes find what one does, and go on after ``kill -9``."""

import json
import time

import pytest
import torch

from tape_ds import results
from tape_ds.cli.evaluate import arithmetic
from tape_ds.data.generated import TASKS
from tape_ds.data.generated.task import tokenizer_of
from tests.integration.conftest import forked, start
from tests.models.helpers import tiny_model


@pytest.fixture
def arguments(tmp_path):
    """A model with random weights, and a job for each cell."""
    torch.manual_seed(0)
    model = tiny_model(encoding="tape", vocab_size=19, eos_token_id=3)
    model.save_pretrained(tmp_path / "model")
    tokenizer_of(TASKS["addition"]).save_pretrained(tmp_path / "model")
    grid = ["--task", "addition", "--trained", "3", "--samples", "20", "--batch_size", "20"]
    return [str(tmp_path / "model"), *grid]


def figures(folder):
    found = dict(results.load(folder / "arithmetic.json").figures)
    assert found.pop("cost")["peak_memory_bytes"] > 0
    return json.dumps(found)


@pytest.mark.slow
def test_two_processes_that_were_killed_find_what_one_does(arguments, tmp_path):
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    words = ["arithmetic", *arguments, "--output", str(killed)]
    with start(tmp_path / "log", "--module", "evaluation", *words) as running:
        while not running.ended and not any(path.stat().st_size for path in killed.glob(".*/*.jsonl")):
            time.sleep(0.01)
    assert not (killed / "arithmetic.json").exists(), "it was killed at its first line"
    ended = forked("evaluation/__main__.py", *words)
    assert ended.code == 0 and "pieces are known" in ended.output, ended.output
    assert arithmetic.main([*arguments, "--output", str(alone)]) == 0
    assert figures(killed) == figures(alone)
    for name in ("arithmetic.csv", "arithmetic.md", "arithmetic.png"):
        assert (killed / name).read_bytes() == (alone / name).read_bytes()
