"""The persistent group itself: ranks find each other, a failure is told with its traceback, and a new group follows."""

import os

import pytest
import torch
from torch import distributed

from tests.distributed.group import CaseFailed, Group


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
