"""One group for what ranks tell each other, however many objects speak over it."""

from torch import distributed

from tape_ds.parallel import rank_sync
from tape_ds.parallel.rank_sync import RankSync


def test_a_job_has_one_group_beside_that_of_its_devices(monkeypatch):
    """Each object made its own: a full mesh of sockets each."""
    made = []
    monkeypatch.setattr(distributed, "get_backend", lambda: "nccl")
    monkeypatch.setattr(distributed, "new_group", lambda backend: made.append(backend) or object())
    rank_sync._gloo_group.cache_clear()
    assert RankSync()._group is RankSync()._group and made == ["gloo"]
    rank_sync._gloo_group.cache_clear()
