"""The work of ``python -m evaluation arithmetic``, which :mod:`evaluation.arithmetic_options` describes."""

import argparse
import itertools
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from evaluation import addressing, arithmetic_options, arithmetic_tables, journal, models
from evaluation import options as shared
from evaluation.cost import Cost
from evaluation.models import FoundModel
from tape_ds.data.addressing.tasks import TASKS as ADDRESSING
from tape_ds.data.arithmetic import sequences, split, vocabulary
from tape_ds.data.arithmetic.tasks import TASKS, ArithmeticSample, ArithmeticTask
from tape_ds.errors import Problem, command, raise_if_any
from tape_ds.model import positions
from tape_ds.model.configuration import TapeConfig
from tape_ds.scoring import arithmetic
from tape_ds.scoring.arithmetic import ArithmeticQuestion, Pair

NAME = "arithmetic"


@command
def main(argv: list[str] | None = None) -> int:
    """Check, ask, count, write, print."""
    options = arithmetic_options.parse(argv)
    model = prepare(options)
    by_length = options.task in ADDRESSING
    evaluation = journal.Evaluation(
        addressing.NAME if by_length else NAME,
        journal.folder(options.output, model),
        model=model.about(),
        config=arithmetic_options.settings(options),
        data=addressing.fingerprints(options) if by_length else fingerprints(options),
        seed=options.seed,
    )
    asking, tables = (addressing.ask_all, addressing) if by_length else (ask_all, arithmetic_tables)

    def show(figures: Mapping[str, Any]) -> None:
        written = tables.write(figures, evaluation.folder, f"{options.task} by {model.name_or_path}")
        print(tables.summary(figures))
        print(", ".join(str(path) for path in written))

    return evaluation.run(lambda: asking(evaluation, options, model), show, overwrite=options.overwrite)


def prepare(options: argparse.Namespace) -> FoundModel:
    """Return the model, not loaded yet; ``options`` have everything afterwards.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = arithmetic_options.check(options)
    model = models.find(options, problems)
    problems += arithmetic_options.complete(options, model)
    raise_if_any(problems)
    task = TASKS[options.task] if options.task in TASKS else addressing.task_of(options)
    if model.tokenizer().get_vocab() != {token: number for number, token in enumerate(task.vocabulary)}:
        wrong = f"its tokens are not those of {options.task}"
        problems.append(
            Problem("model", model.name_or_path, wrong, "give a model that launchers/train_arithmetic.py made")
        )
    if isinstance(task, ArithmeticTask):
        problems += arithmetic.check_reach("--digits", options.digits, task)
        problems += shared.check_lengths("--digits (in tokens)", [task.longest(*options.digits)], model)
    else:
        problems += shared.check_lengths(
            "--lengths (in tokens)", [task.tokens(each) for each in options.lengths], model
        )
    raise_if_any(problems)
    return model


def ask_all(evaluation: journal.Evaluation, options: argparse.Namespace, found: FoundModel) -> dict[str, Any]:
    """Load the model, ask what no earlier start has asked; what came of it."""
    model = found.load()
    cost = Cost(found.device)
    task = TASKS[options.task]
    groups = [(" ".join(f"{i}x{j}" for i, j in group), group) for group in grouped(task, options, scale_of(found))]
    answered = evaluation.run_jobs(groups, partial(ask, model, found.tokenizer(), task, options))
    cells = sorted(itertools.chain(*answered.values()), key=lambda cell: (cell["first"], cell["second"]))
    means = arithmetic.means(cells, options.trained)
    return {
        "task": task.name,
        "sizes": list(task.sizes),
        "trained": list(options.trained),
        "means": {name: asdict(mean) for name, mean in means.items()},
        "remark": arithmetic.drawn_too_short(found.config, task, options.digits),
        "cells": cells,
        "cost": cost.taken(samples=sum(cell["samples"] for cell in cells)),
    }


def fingerprints(options: argparse.Namespace) -> dict[str, str]:
    """Of the problems that are asked."""
    return {f"arithmetic:{options.task}": sequences.fingerprint(options.task, *options.digits)}


def scale_of(found: FoundModel) -> Callable[[int], str]:
    """Return a function that says what the model makes of texts of so many tokens, alike for all unless its encoding
    follows from their length (``yarn``, ``nope`` with a ``score_scale``)."""

    @cache
    def scale(length: int) -> str:
        if not isinstance(found.config, TapeConfig):
            return ""
        used = positions.config_at(found.config, length)
        return json.dumps([used.rope_parameters, used.position_options], sort_keys=True)

    return scale


def grouped(task: ArithmeticTask, options: argparse.Namespace, scale: Callable[[int], str]) -> list[list[Pair]]:
    """Return the cells of the grid, the longest prompts first, in groups that are asked together.

    Cells whose prompts are equally long share a batch, as far as it has room for all their samples, unless the model's
    ``scale`` is another for the longest texts of one: no cell's RoPE scaling is that of the cells it is asked with. The
    groups follow from model and options alone, whatever the number of processes: a batch's size may show in the last
    bit of a logit.
    """
    alike: dict[tuple[int, str], list[Pair]] = {}
    for i, j in itertools.product(*(range(1, last + 1) for last in options.digits)):
        prompt = task.draw(random.Random(options.seed), i, j).prompt
        alike.setdefault((len(prompt), scale(task.longest(i, j))), []).append((i, j))
    together = max(1, options.batch_size // options.samples)
    return [
        cells[start : start + together]
        for _, cells in sorted(alike.items(), reverse=True)
        for start in range(0, len(cells), together)
    ]


def ask(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: ArithmeticTask,
    options: argparse.Namespace,
    group: Sequence[Pair],
) -> list[dict[str, Any]]:
    """Return what ``model`` makes of the held-out samples of some cells."""
    drawn = [split.cell(task, i, j, options.samples, options.seed) for i, j in group]
    asked, ids_of_letters = [], tokenizer.get_vocab()
    for sample in itertools.chain(*drawn):
        ids, targets = sequences.encode(sample, ids_of_letters)  # exactly as a training sequence has it
        asked.append(ArithmeticQuestion(tuple(ids[:-targets]), tuple(ids[-targets:-1])))
    with models.used_at(model, max(task.longest(i, j) for i, j in group)):
        written = arithmetic.replies(
            model, asked, end=vocabulary.EOS, batch_size=options.batch_size, use_cache=options.use_cache
        )
    # every token as its own text; "?" for one that the tokenizer lacks and the model has
    texts = ("".join(token or "?" for token in tokenizer.convert_ids_to_tokens(list(ids))) for ids in written)
    return [count(pair, samples, [next(texts) for _ in samples]) for pair, samples in zip(group, drawn, strict=True)]


def count(pair: Pair, samples: Sequence[ArithmeticSample], replies: Sequence[str]) -> dict[str, Any]:
    """Return one cell: how many were right, and some that were not."""
    wrong = [
        {"prompt": sample.prompt, "answer": sample.answer, "reply": reply}
        for sample, reply in zip(samples, replies, strict=True)
        if reply != sample.answer
    ]
    return {
        "first": pair[0],
        "second": pair[1],
        "samples": len(samples),
        "correct": len(samples) - len(wrong),
        "wrong": wrong[: arithmetic.EXAMPLES],
    }


if __name__ == "__main__":
    sys.exit(main())
