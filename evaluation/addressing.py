"""``python -m evaluation arithmetic`` for a task of addressing: how many answers are right, by length of the test.

Written to the folder of results: ``addressing.json``, ``addressing.csv`` and ``addressing.md``.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from evaluation import journal, models
from evaluation.cost import Cost
from evaluation.models import FoundModel
from tape_ds import storage
from tape_ds.data.addressing import lengths, sequences, tasks
from tape_ds.data.addressing.lengths import Test
from tape_ds.data.addressing.task import AddressingTask
from tape_ds.scoring import addressing
from tape_ds.scoring.addressing import Answered

NAME = "addressing"


def task_of(options: argparse.Namespace) -> AddressingTask:
    """Return the task that is asked, once the options are complete."""
    return tasks.make(options.task, options.task_options)


def fingerprints(options: argparse.Namespace) -> dict[str, str]:
    """Of the sequences that are asked."""
    return {f"addressing:{options.task}": sequences.fingerprint(task_of(options), options.lengths)}


def ask_all(evaluation: journal.Evaluation, options: argparse.Namespace, found: FoundModel) -> dict[str, Any]:
    """Load the model, ask what no earlier start has asked; what came of it."""
    model = found.load()
    cost = Cost(found.device)
    tests = lengths.tests(task_of(options), options.lengths)
    longest_first = sorted(((str(test), test) for test in tests), key=lambda named: -named[1].length)
    answered = evaluation.run_jobs(longest_first, lambda test: ask(model, options, test))
    return {
        "task": options.task,
        "tests": [answered[str(test)] for test in tests],
        "cost": cost.taken(samples=options.samples * len(tests)),
    }


def ask(model: PreTrainedModel, options: argparse.Namespace, test: Test) -> dict[str, Any]:
    """Return what ``model`` makes of one test."""
    tokens = test.task.tokens(test.length)
    with models.used_at(model, tokens):
        together = options.batch_size * tokens
        return addressing.ask(model, test, options.samples, options.seed, batch_tokens=together).to_dict()


def write(figures: Mapping[str, Any], folder: Path, title: str) -> list[Path]:
    """``addressing.csv`` and ``addressing.md`` in ``folder``, each whole or not at all."""
    csv_file, table_file = folder / f"{NAME}.csv", folder / f"{NAME}.md"
    names = ("length", "kind", "rows", "answers", "correct", "chance")
    cells = [[each[name] for name in names] for each in figures["tests"]]
    storage.write_text(csv_file, storage.as_csv(names, cells))
    storage.write_text(table_file, f"# {title}\n\n{summary(figures)}\n")
    return [csv_file, table_file]


def summary(figures: Mapping[str, Any]) -> str:
    """Return a line for each test."""
    return "\n".join(f"- {each.label}: {each}" for each in map(Answered.from_dict, figures["tests"]))
