"""A problem that the first process finds reaches all processes: none of them waits for one that has left."""

import pickle

import pytest
import torch

from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError
from tape_ds.scoring import resumable


@pytest.fixture
def on(monkeypatch):
    """Lets this process be a rank of two; what the first one sends reaches the second."""
    sent = []

    def broadcast(box, src, group):
        if not sent:
            sent.append(pickle.dumps(box))
        box[:] = pickle.loads(sent[0])

    def become(rank):
        for name, value in {"rank": rank, "world": 2}.items():
            monkeypatch.setattr(RankSync, name, value)
        monkeypatch.setattr("tape_ds.distributed.rank_sync.join", lambda: None)

    monkeypatch.setattr("tape_ds.distributed.rank_sync.join", lambda: None)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    return become


def test_the_first_one_s_problem_reaches_all(on):
    def make():
        raise UserError(Problem("--output", "there", "is taken", "name another"))

    for rank in (0, 1):
        on(rank)
        with pytest.raises(UserError, match="--output = 'there': is taken"):
            resumable.from_first(make if rank == 0 else lambda: pytest.fail("it is the first one's to find"))
