"""A launcher as a user types it, two processes sharing every row: the run of one process, and its scores."""

import pytest

from tests.integration.conftest import forked, launch
from tests.integration.shared_runs import arguments, assert_scored_alike, assert_trained_alike

SCRIPT = "launchers/extend_llama.py"


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
    assert_trained_alike(shared[0], alone)


def test_each_rank_scores_documents_of_its_own(shared, alone):
    """In evaluation mode nothing is shared; one document on two ranks is scored by one of them."""
    assert_scored_alike(shared[0], alone)


def test_heads_that_cannot_be_shared_are_refused_before_anything_starts(tiny, tmp_path):
    """Four query heads on three processes: exit code 2, and every rank says nothing but the remedy."""
    flags = [*arguments(tiny, tmp_path / "refused"), "--sequence_parallel_size", "3"]
    ended = forked(SCRIPT, *flags, processes=3)
    assert ended.code == 2
    assert "give one of: 1, 2, 4" in ended.output and "Traceback" not in ended.output
    assert not (tmp_path / "refused").exists()
