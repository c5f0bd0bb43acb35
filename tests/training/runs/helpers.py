"""What tests of runs share: flags of a recipe, and a run from its first word to its stored results."""

import json

import pytest

from tape_ds.errors import UserError
from tape_ds.targets.find import find_target
from tape_ds.training import report
from tape_ds.training.run import build_trainer
from tape_ds.training.runs import assembly


def flags(fields):
    """A command line that gives these fields."""
    return [part for name, value in fields.items() for part in (f"--{name}", str(value))]


def assemble(recipe):
    """The run of a recipe, up to its trainer."""
    return assembly.assemble(find_target(recipe))


def complete(run):
    """Train and store; returns the trainer and what is in results/run.json."""
    trainer = build_trainer(run)
    started = report.begin(run)
    trainer.train()
    report.conclude(run, trainer, started)
    return trainer, json.loads((run.output / "results" / "run.json").read_text())


def refusals(recipe):
    """Field -> problem of a recipe that is refused while its run is assembled."""
    with pytest.raises(UserError) as caught:
        assemble(recipe)
    return {problem.field: problem for problem in caught.value.problems}
