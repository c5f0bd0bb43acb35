"""A launcher as a user types it, two processes sharing the model: the run of one process, its scores, its folders."""

import json

import pytest
import torch

from tape_ds.training import trained
from tape_ds.training.consolidation import consolidate
from tests.integration.conftest import forked, launch
from tests.integration.test_sequence_parallel import arguments, losses

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
    """Losses in fp32 to 1e-5; weights to 2e-3 after four steps of 0.03, as between any two numbers of processes."""
    assert losses(shared[0]) == pytest.approx(losses(alone), abs=1e-5)
    one, other = (trained.load_trained(output / "trained") for output in (alone, shared[0]))
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=0, msg=name)


def test_both_score_together_what_one_process_scores(shared, alone):
    mine, other = (
        json.loads((output / "results" / "run.json").read_text())["figures"]["loss_by_position"]["tape, trained"]
        for output in (shared[0], alone)
    )
    assert mine.keys() == other.keys()
    for name in mine:
        assert mine[name]["counts"] == other[name]["counts"]
        assert mine[name]["nll"] == pytest.approx(other[name]["nll"], rel=1e-5)


def test_a_checkpoint_becomes_one_folder_of_whole_weights(shared, tmp_path):
    """As the run's own trained folder at the end, to the last digit."""
    consolidate(shared[0] / "checkpoint-4", tmp_path / "one")
    one, other = (trained.load_trained(folder) for folder in (tmp_path / "one", shared[0] / "trained"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_another_size_is_refused_on_resume(tiny, shared):
    """Naming both sizes and the way out."""
    flags = ["--deepspeed", "zero2", "--resume", "auto", "--save_strategy", "steps"]
    ended = forked(SCRIPT, *arguments(tiny, shared[0]), *flags, processes=1)
    assert ended.code == 2 and "Traceback" not in ended.output, ended.output[-3000:]
    assert "tensor_parallel_size 2, and this job's is 1" in ended.output
