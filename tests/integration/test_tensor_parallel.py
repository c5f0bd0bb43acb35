"""A launcher as a user types it, two processes sharing the model: the run of one process, its scores, its folders."""

import json

import pytest
import torch

from tape_ds.checkpoint import trained
from tests.integration.conftest import forked, launch
from tests.integration.shared_runs import arguments, assert_scored_alike, assert_trained_alike
from tools import consolidate

SCRIPT = "launchers/extend_llama.py"


@pytest.fixture(scope="module")
def shared(tiny, tmp_path_factory):
    """Folder and output of a launch on two processes that share the model, with a checkpoint half way."""
    output = tmp_path_factory.mktemp("pieces")
    sizes = ["--tensor_parallel_size", "2", "--deepspeed", "zero2"]
    ended = launch(SCRIPT, *arguments(tiny, output), *sizes, "--save_strategy", "steps", "--save_steps", "2")
    assert ended.code == 0, ended.output[-4000:]
    return output, ended.output


@pytest.fixture(scope="module")
def alone(tiny, tmp_path_factory):
    """Folder of the same run by one process."""
    output = tmp_path_factory.mktemp("alone")
    ended = forked(SCRIPT, *arguments(tiny, output), processes=1)
    assert ended.code == 0, ended.output[-4000:]
    return output


def test_it_says_who_reads_what_and_counts_whole_parameters(shared, alone):
    assert "1 per device x 1 group of 2 processes x 4 accumulation" in shared[1]
    mine, other = (json.loads((output / "results" / "run.json").read_text()) for output in (shared[0], alone))
    assert mine["figures"]["parameters"] == other["figures"]["parameters"]


def test_it_trains_what_one_process_trains(shared, alone):
    assert_trained_alike(shared[0], alone)


def test_both_score_together_what_one_process_scores(shared, alone):
    assert_scored_alike(shared[0], alone)


def test_a_checkpoint_becomes_one_folder_of_whole_weights(shared, tmp_path):
    """As the run's own folder of trained weights at the end, to the last digit."""
    assert consolidate.main([str(shared[0] / "checkpoint-4"), str(tmp_path / "one")]) == 0
    one, other = (trained.load_trained(folder) for folder in (tmp_path / "one", shared[0] / "trained"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_another_size_is_refused_on_resume(tiny, shared):
    """Naming both sizes and the way out."""
    flags = ["--deepspeed", "zero2", "--resume", "auto", "--save_strategy", "steps"]
    ended = forked(SCRIPT, *arguments(tiny, shared[0]), *flags, processes=1)
    assert ended.code == 2 and "Traceback" not in ended.output, ended.output[-3000:]
    assert "tensor_parallel_size 2, and this job's is 1" in ended.output
