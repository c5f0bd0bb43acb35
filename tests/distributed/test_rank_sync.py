"""One group for what ranks tell each other, however many objects speak over it."""

from datetime import timedelta
from types import SimpleNamespace

import torch
from torch import distributed

from tape_ds.distributed import rank_sync
from tape_ds.training import environment


def test_a_job_has_one_group_beside_that_of_its_devices_which_waits_as_long(monkeypatch):
    """Each object made its own, a full mesh of sockets each, and waited half an hour whatever ddp_timeout."""
    made = []
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_backend", lambda: "nccl")
    monkeypatch.setattr(distributed, "new_group", lambda **kwargs: made.append(kwargs) or object())
    monkeypatch.setattr(rank_sync, "_groups", {})
    hours = timedelta(hours=5)
    joins = SimpleNamespace(device=torch.device("cpu"), deepspeed=None, ddp_timeout_delta=hours)
    environment.join_process_group(joins)
    assert rank_sync.join() is rank_sync.join() and made == [{"backend": "gloo", "timeout": hours}]
