"""A launcher on two processes that share the model or every sequence: the run of one process, its scores."""

import json

import pytest
import torch

from tape_ds.checkpoint import trained
from tape_ds.cli import consolidate
from tests.integration.conftest import forked
from tests.integration.shared_runs import arguments, assert_scored_alike, assert_trained_alike

SCRIPT = "launchers/extend_llama.py"


@pytest.fixture(scope="module")
def sequences(tiny, tmp_path_factory):
    """Folder and output of a run of two processes that share sequences."""
    output = tmp_path_factory.mktemp("rows")
    ended = forked(SCRIPT, *arguments(tiny, output), "--sequence_parallel_size", "2")
    assert ended.code == 0, ended.output[-4000:]
    return output, ended.output


@pytest.fixture(scope="module")
def pieces(tiny, tmp_path_factory):
    """Folder and output of a run of two processes that share the model, with a checkpoint half way."""
    output = tmp_path_factory.mktemp("pieces")
    sizes = ["--tensor_parallel_size", "2", "--deepspeed", "zero2"]
    ended = forked(SCRIPT, *arguments(tiny, output), *sizes, "--save_strategy", "steps", "--save_steps", "2")
    assert ended.code == 0, ended.output[-4000:]
    return output, ended.output


@pytest.fixture(scope="module")
def alone(tiny, tmp_path_factory):
    """Folder of the same run by one process."""
    output = tmp_path_factory.mktemp("alone")
    ended = forked(SCRIPT, *arguments(tiny, output), processes=1)
    assert ended.code == 0, ended.output[-4000:]
    return output


def test_a_model_in_pieces_counts_whole_parameters(pieces, alone):
    assert "1 per device x 1 group of 2 processes x 4 accumulation" in pieces[1]
    mine, other = (json.loads((output / "results" / "run.json").read_text()) for output in (pieces[0], alone))
    assert mine["figures"]["parameters"] == other["figures"]["parameters"]


def test_pieces_train_what_one_process_trains(pieces, alone):
    assert_trained_alike(pieces[0], alone)


def test_pieces_score_together_what_one_process_scores(pieces, alone):
    assert_scored_alike(pieces[0], alone)


def test_a_checkpoint_becomes_one_folder_of_whole_weights(pieces, tmp_path):
    """As the run's own folder of trained weights at the end, to the last digit."""
    assert consolidate.main([str(pieces[0] / "checkpoint-4"), str(tmp_path / "one")]) == 0
    one, other = (trained.load_trained(folder) for folder in (tmp_path / "one", pieces[0] / "trained"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_another_size_is_refused_on_resume(tiny, pieces):
    """Naming both sizes and the way out."""
    flags = ["--deepspeed", "zero2", "--resume", "auto", "--save_strategy", "steps"]
    ended = forked(SCRIPT, *arguments(tiny, pieces[0]), *flags, processes=1)
    assert ended.code == 2 and "Traceback" not in ended.output, ended.output[-3000:]
    assert "tensor_parallel_size 2, and this job's is 1" in ended.output


def test_ranks_that_share_sequences_are_one_reader(sequences):
    assert "1 per device x 1 group of 2 processes x 4 accumulation" in sequences[1]


def test_shared_sequences_train_what_one_process_trains(sequences, alone):
    assert_trained_alike(sequences[0], alone)


def test_each_rank_scores_documents_of_its_own(sequences, alone):
    """In evaluation mode nothing is shared; one document on two ranks is scored by one of them."""
    assert_scored_alike(sequences[0], alone)


def test_heads_that_cannot_be_shared_are_refused_before_anything_starts(tiny, tmp_path):
    """Four query heads on three processes: exit code 2, and every rank says nothing but the remedy."""
    flags = [*arguments(tiny, tmp_path / "refused"), "--sequence_parallel_size", "3"]
    ended = forked(SCRIPT, *flags, processes=3)
    assert ended.code == 2
    assert "give one of: 1, 2, 4" in ended.output and "Traceback" not in ended.output
    assert not (tmp_path / "refused").exists()
