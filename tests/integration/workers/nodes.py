"""A launcher as all of them begin: it reads a recipe, compares the machines, joins, and leaves."""

import sys

import torch
from torch import distributed

from tape_ds.distributed import comparison, rendezvous
from tape_ds.distributed.processes import leave_process_group
from tape_ds.errors import command
from tape_ds.targets.new_model import PretrainingTarget
from tape_ds.training.environment import end_process, say
from tape_ds.training.identity import of_data
from tests.config import loads


@command
@rendezvous.report_failures
def main() -> int:
    words = sys.argv[1:]
    if breaks := "--break_down" in words:
        words.remove("--break_down")
    recipe = loads.pretraining(words)
    if breaks:
        raise KeyError("a library is broken here")
    identity = of_data(PretrainingTarget(recipe, None, None).fingerprints())
    comparison.check(recipe.as_dict(), identity, recipe.trainer.ddp_timeout)
    distributed.init_process_group("gloo")
    summed = torch.ones(1)
    distributed.all_reduce(summed)
    say(f"together: {summed.item():g} ranks")
    leave_process_group()
    end_process(0)


if __name__ == "__main__":
    sys.exit(main())
