"""One evaluation on several processes: each holds the whole model and takes its share of the work.

``torchrun``, ``deepspeed --module`` and ``accelerate launch`` all say who a process is in its environment. Only small
Python objects are exchanged, so the group is a gloo group on every machine.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar, cast

import torch

from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import UserError
from tape_ds.training.environment import leave_process_group, share_cores

Found = TypeVar("Found")

PATIENCE = timedelta(weeks=1)
"""How long a process waits for one whose share takes longer."""


@contextmanager
def joined() -> Iterator[None]:
    """The process is in its job's group, where there is one; it is left in order where the work went well."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))  # what DeepSpeed's launcher sets
    share_cores()
    torch.distributed.init_process_group("gloo", timeout=PATIENCE)
    yield
    leave_process_group()


def from_first(make: Callable[[], Found]) -> Found:
    """Return what ``make`` gives on the first process, on all of them; it is called there alone, and all must call
    this.

    Raises:
        UserError: what ``make`` raised, on all of them: nobody waits for a process that has left.
    """
    ranks = RankSync()
    own: tuple[Found | None, UserError | None] = None, None
    if ranks.rank == 0:
        try:
            own = make(), None
        except UserError as error:
            own = None, error
    found, mistake = ranks.first(own)
    if mistake is not None:
        mistake.on_one_rank = mistake.on_one_rank and ranks.world == 1  # else all have it now
        raise mistake
    return cast(Found, found)
