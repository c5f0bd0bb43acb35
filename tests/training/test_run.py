"""What every run has."""

import json
from types import SimpleNamespace

import pytest
import torch

from tape_ds.errors import Problem, UserError
from tape_ds.resilience.run_lock import RunLock
from tape_ds.training import job, run
from tests.config import loads


def test_weights_are_16_bit_only_under_an_engine():
    """AdamW on bf16 weights loses steps of 2e-5 on a norm's weight of 1 whole; a gradient scaler refuses fp16. What is
    only scored has the precision of what is trained."""
    half = {"bf16": True, "fp16": False}
    assert run.weights_dtype(SimpleNamespace(deepspeed=None, **half)) == torch.float32
    assert run.weights_dtype(SimpleNamespace(deepspeed={"bf16": {}}, **half)) == torch.bfloat16
    assert (
        run.weights_dtype(SimpleNamespace(deepspeed=None, **half), trains=False) == torch.bfloat16
    )


@pytest.mark.parametrize(
    ("steps", "epochs", "sequences", "samples"),
    [(5, None, 100, 40), (-1, 2.0, 10, 24), (-1, 0.5, 16, 8), (-1, 1.0, 1, 8)],
)
def test_samples_are_whole_steps(steps, epochs, sequences, samples):
    """Steps decide where they are given; else epochs do, rounded up to steps of 8 sequences."""
    length = ["--max_steps", str(steps)] + (
        [] if epochs is None else ["--num_train_epochs", str(epochs)]
    )
    recipe = loads.extension([*length, "--global_batch_size", "8"], world_size=1)
    assert run.sample_count(recipe, sequences) == samples


class TwoRanks:
    """What the ranks of a job share, of which the other rank has answered."""

    rank, world = 0, 2

    def __init__(self, other):
        self.other = other

    def objects(self, own):
        return [own, self.other]

    def first(self, own):
        return own


def test_what_one_rank_is_refused_all_are(tmp_path):
    """A rank that continued would wait for it for ever; a problem of both is named once."""
    problem = Problem("output_dir", str(tmp_path), "rank 1 lives in it", "wait")
    with pytest.raises(UserError, match=r"(?s)1 problem found.*rank 1 lives in it"):
        job.lock(tmp_path, TwoRanks([problem]))
    assert job.from_all_ranks([problem], TwoRanks([problem])) == [problem]
    RunLock(tmp_path, 0).release()


def test_a_rank_on_another_machine_is_another_whatever_its_number(tmp_path):
    """Containers count their processes from 1 on: one of the same number elsewhere was taken for this process."""
    lock = RunLock(tmp_path, 3)
    lock.acquire()
    holder = json.loads(lock.path.read_text())
    lock.path.write_text(json.dumps(holder | {"host": "elsewhere"}))
    with pytest.raises(UserError, match=r"rank 3: process \d+ on elsewhere"):
        job.lock(tmp_path, TwoRanks([]))
    lock.release()
