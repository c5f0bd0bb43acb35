"""A launcher as a user types it, two processes sharing every row: the run of one process, and its scores."""

import json

import pytest
import torch

from tape_ds.training import trained
from tests.integration.conftest import forked, launch

SCRIPT = "launchers/extend_llama.py"


def arguments(tiny, output) -> list[str]:
    """Rows of an odd number of tokens, drawn by PoSE, under ZeRO-3, recomputed; a document of each rank is scored."""
    flags = {
        "model": tiny / "model",
        "target_length": 128,
        "rope_parameters.original_max_position_embeddings": 64,
        "train_data": f"text:{tiny}/text.txt",
        "eval_data": f"text:{tiny}/held_out.txt",
        "data_cache": tiny / "cache",
        "window": 33,
        "eval_span": 32,
        "max_steps": 4,
        "save_strategy": "no",
        "learning_rate": 0.03,
        "warmup_steps": 0,
        "bf16": "false",
        "activation_checkpointing": "true",
        "global_batch_size": 4,
        "output_dir": output,
    }
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


def losses(output) -> list[float]:
    """Of every logged step."""
    return [json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def shared(tiny, tmp_path_factory):
    """Folder and output of a launch on two processes that share rows."""
    output = tmp_path_factory.mktemp("shared")
    ended = launch(SCRIPT, *arguments(tiny, output), "--sequence_parallel_size", "2")
    assert ended.code == 0, ended.output[-4000:]
    return output, ended.output


@pytest.fixture(scope="module")
def alone(tiny, tmp_path_factory):
    """Folder of the same run by one process."""
    output = tmp_path_factory.mktemp("alone")
    ended = forked(SCRIPT, *arguments(tiny, output), processes=1)
    assert ended.code == 0, ended.output[-4000:]
    return output


def test_it_says_who_reads_what(shared):
    assert "1 per device x 1 group of 2 processes x 4 accumulation" in shared[1]


def test_it_trains_what_one_process_trains(shared, alone):
    """Losses in fp32 to 1e-5; weights to 2e-3 after four steps of 0.03, as between any two numbers of processes."""
    assert losses(shared[0]) == pytest.approx(losses(alone), abs=1e-5)
    one, other = (trained.load_trained(output / "trained") for output in (alone, shared[0]))
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=0, msg=name)


def test_each_rank_scores_documents_of_its_own(shared, alone):
    """In evaluation mode nothing is shared; one document on two ranks is scored by one of them."""
    mine, other = (
        json.loads((output / "results" / "run.json").read_text())["figures"]["loss_by_position"]["tape, trained"]
        for output in (shared[0], alone)
    )
    assert mine.keys() == other.keys()
    for name in mine:
        assert mine[name]["counts"] == other[name]["counts"]
        assert mine[name]["nll"] == pytest.approx(other[name]["nll"], rel=1e-5)


def test_heads_that_cannot_be_shared_are_refused_before_anything_starts(tiny, tmp_path):
    """Four query heads on three processes: exit code 2, and every rank says nothing but the remedy."""
    flags = [*arguments(tiny, tmp_path / "refused"), "--sequence_parallel_size", "3"]
    ended = forked(SCRIPT, *flags, processes=3)
    assert ended.code == 2
    assert "give one of: 1, 2, 4" in ended.output and "Traceback" not in ended.output
    assert not (tmp_path / "refused").exists()
