"""One evaluation on several processes: each holds the whole model and takes its share of the work.

``torchrun``, ``deepspeed --module`` and ``accelerate launch`` all say who a process is in its environment. Only small
Python objects are exchanged, so the group is a gloo group on every machine.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

from tape_ds.errors import UserError

Found = TypeVar("Found")

PATIENCE = timedelta(weeks=1)
"""How long a process waits for one whose share takes longer."""


@contextmanager
def joined() -> Iterator[tuple[int, int]]:
    """The process in its job, as (rank, processes); the group is left in order where the work went well."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield 0, 1
        return
    import torch

    from tape_ds.training.environment import leave_process_group, share_cores

    os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))  # what DeepSpeed's launcher sets
    share_cores()
    torch.distributed.init_process_group("gloo", timeout=PATIENCE)
    yield torch.distributed.get_rank(), world
    leave_process_group()


def rank_and_world() -> tuple[int, int]:
    """This process's number and how many there are; (0, 1) where there is no group."""
    import torch

    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def from_first(make: Callable[[], Found]) -> Found:
    """What ``make`` gives on the first process, on all of them; it is called there alone, and all must call this.

    Raises:
        UserError: what ``make`` raised, on all of them: nobody waits for a process that has left.
    """
    import torch

    rank, world = rank_and_world()
    if world == 1:
        return make()
    box: list[Any] = [None, None]
    if rank == 0:
        try:
            box[0] = make()
        except UserError as error:
            box[1] = error
    torch.distributed.broadcast_object_list(box)
    found, mistake = box
    if mistake is not None:
        mistake.on_one_rank = False  # all have it now
        raise mistake
    return cast(Found, found)


def gather(mine: Found) -> list[Found]:
    """What every process has, by rank; all must call it."""
    import torch

    world = rank_and_world()[1]
    if world == 1:
        return [mine]
    found: list[Any] = [None] * world
    torch.distributed.all_gather_object(found, mine)
    return found
