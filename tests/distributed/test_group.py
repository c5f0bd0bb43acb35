"""The persistent group itself: ranks find each other, a failure is told with its traceback, and a new group follows."""

import os

import pytest
import torch
from torch import distributed

from tests.distributed.group import CaseFailed, Group
from tests.distributed.journal import Journal


def total(addend: int) -> tuple[int, int]:
    """The sum over all ranks, and this process."""
    found = torch.tensor(distributed.get_rank() + addend)
    distributed.all_reduce(found)
    return int(found), os.getpid()


def fails_on_one() -> None:
    """The others would wait for this rank."""
    if distributed.get_rank() == 1:
        raise ValueError("rank 1 alone")
    distributed.barrier()


def test_the_ranks_compute_together_and_live_on(group):
    first, second = group.run(total, 1), group.run(total, 2)
    assert [value for value, _ in first] == [10] * 4 and [value for value, _ in second] == [14] * 4
    assert [process for _, process in first] == [process for _, process in second]


def test_a_case_that_fails_on_one_rank_is_told_and_survived():
    own = Group(2)
    try:
        with pytest.raises(CaseFailed, match="rank 1 alone"):
            own.run(fails_on_one)
        assert [value for value, _ in own.run(total, 0)] == [1, 1]
    finally:
        own.end()


def test_a_product_that_was_cut_short_goes_on(tmp_path):
    """A line that a kill left unfinished is computed again."""
    file = tmp_path / "steps.jsonl"
    assert Journal(file).of(1, lambda: {"a": 0.5}) == {"a": 0.5}
    with file.open("a") as written:
        written.write('{"case": "2", "fou')
    again = Journal(file)
    assert again.of(1, lambda: {"a": 9.0}) == {"a": 0.5}
    assert again.of(2, lambda: {"a": 2.0}) == {"a": 2.0}
    assert len(file.read_text().splitlines()) == 2 and len(again.commits) == 1
