"""A process prepares itself without overruling its user, and without a compiler."""

import os
import subprocess
import sys

import pytest
import torch

from tape_ds.training import environment

JOB = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Every variable and thread count as it was before the test."""
    more = (
        "OMP_NUM_THREADS",
        "LOCAL_SIZE",
        "WANDB_DIR",
        "WANDB_MODE",
        *environment.ALLOCATOR_VARIABLES,
        *JOB,
    )
    for name in (*environment.DEFAULTS, *more):
        monkeypatch.setenv(name, "")  # so that the value at the end of the test is undone, too
        monkeypatch.delenv(name)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_what_the_user_set_stays(monkeypatch):
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "0")
    environment.prepare_process()
    assert os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] == "0"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


@pytest.mark.parametrize("name", environment.ALLOCATOR_VARIABLES)
def test_the_allocator_s_segments_grow_unless_the_user_has_set_it_up(name, monkeypatch):
    assert not environment.expand_segments(False)
    monkeypatch.setenv(name, "max_split_size_mb:64")
    assert not environment.expand_segments() and os.environ[name] == "max_split_size_mb:64"
    monkeypatch.delenv(name)
    assert (
        environment.expand_segments()
        and os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    )


def test_a_process_without_a_launcher_is_a_job_of_one():
    """``python launchers/extend_llama.py`` ended in DeepSpeed's search for MPI."""
    environment.prepare_process()
    assert [os.environ[name] for name in JOB[:4]] == ["0", "0", "1", "127.0.0.1"]
    assert 0 < int(os.environ["MASTER_PORT"]) < 2**16


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_a_launched_one_stays_what_it_is(monkeypatch, name):
    monkeypatch.setenv(name, "3")
    environment.prepare_process()
    assert [job for job in JOB if job in os.environ] == [job for job in JOB if job == name]


def test_a_run_that_goes_on_is_the_same_run_to_its_trackers(tmp_path, monkeypatch):
    """A new one in the same folder is another; a person's own id stays."""
    ids = []
    for resumed in (False, True, True, False):
        for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR", "TENSORBOARD_LOGGING_DIR"):
            monkeypatch.delenv(name, raising=False)
        environment.keep_trackers_in(tmp_path, resumed)
        ids.append(os.environ["WANDB_RUN_ID"])
        assert os.environ["WANDB_RESUME"] == "allow"
        assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "tensorboard")
        assert (os.environ["WANDB_DIR"], os.environ["WANDB_MODE"]) == (str(tmp_path), "offline")
    assert ids[0] == ids[1] == ids[2] != ids[3]
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    environment.keep_trackers_in(tmp_path)
    assert os.environ["WANDB_RUN_ID"] == "mine"


def test_other_ranks_have_no_trackers(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.setenv("RANK", "1")
    environment.keep_trackers_in(tmp_path)
    assert "WANDB_RUN_ID" not in os.environ and not (tmp_path / "trackers.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="cores are shared out on CPU machines only")
def test_ranks_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setenv("LOCAL_SIZE", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # so that what is set below is taken back
    monkeypatch.delenv("OMP_NUM_THREADS")
    environment.share_cores()
    assert torch.get_num_threads() == 4
    assert os.environ["OMP_NUM_THREADS"] == "4", "accelerate gave every rank all cores again"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("LOCAL_SIZE", "4")
    environment.share_cores()
    assert torch.get_num_threads() == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="the op exists on CPU machines only")
def test_deepspeed_builds_no_shared_memory_op():
    """A first two-process run spent 33 s in g++ here, and died where there was no compiler."""
    from deepspeed.comm.torch import build_shm_op

    environment.prepare_process()
    assert build_shm_op() is None


END = """
import atexit, os
from tape_ds.training.environment import end_process

class Left:
    def __del__(self, abort=os.abort):
        abort()  # as a thread does that was not joined

left = Left()
atexit.register(print, "at the exit")
print("done")
end_process(3)
"""


def test_a_tear_down_that_aborts_is_not_a_run_that_failed():
    """One run in three ended so on a loaded machine, its results whole."""
    command = [sys.executable, "-c", END]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 3 and process.stdout.splitlines() == ["done", "at the exit"]
