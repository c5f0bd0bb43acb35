"""Tasks drawn from a seed: how many answers are right, for each pair of operand lengths or each length of a text.

    tape-ds evaluate generated runs/addition                      to the run's test_digits, 100 samples a cell
    tape-ds evaluate generated runs/addition --digits 12 --samples 50
    tape-ds evaluate generated MODEL --task addition --trained 6
    tape-ds evaluate generated runs/addressing/look_back --lengths 48 72 96
    tape-ds evaluate generated runs/addition_40 --batch_size 2000 --gpus 8

Samples are held out: no training sequence has their operands. An answer is right if greedy decoding gives the whole
of it and then the end of text, which one pass over prompt and answer decides.
The mean of the whole grid includes the trained lengths (of a grid to twice their length a quarter), so the mean of the
cells beyond them, where either operand is longer, is given as well.

Written to the folder of results: ``arithmetic.json``, ``arithmetic.png``, ``arithmetic.csv``, ``arithmetic.md``; for a
task of addressing, whose answers are counted token by token, the same files without a picture, as ``addressing``. Exit
codes: 0 done; 2 a mistake.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import results
from tape_ds.arguments import Parser, add_model, add_output, below_one, values_of
from tape_ds.data import generated
from tape_ds.data.generated import TASKS
from tape_ds.data.generated.addressing import AddressingTask
from tape_ds.data.generated.arithmetic import ArithmeticTask
from tape_ds.data.generated.task import Task, Test, ids_of
from tape_ds.errors import Problem, command, raise_if_any
from tape_ds.run_folder import RESULTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tape_ds.scoring.models import FoundModel
    from tape_ds.scoring.resumable import Evaluation

# problems of a cell at most: more would take hours to find where there are few
MOST = 10_000
SAMPLES = 100
ROWS = 1000
BATCH_SIZE = 400


@command
def main(argv: list[str] | None = None) -> int:
    """Check, ask, count, write, print."""
    options, problems = parse(argv)

    from tape_ds.scoring import heat_maps, models, resumable

    found_model = models.find(options, problems)
    task = prepare(options, found_model, problems)
    # other batches round otherwise, and a probability may be on the edge
    deciding = values_of(options, ("task", "samples", "batch_size"))
    if isinstance(task, ArithmeticTask):
        name = "arithmetic"
        deciding["trained"] = list(options.trained)
        deciding["digits"] = list(options.tested)
    else:
        name = "addressing"
        deciding["task_options"] = options.task_options
        deciding["lengths"] = options.tested
    work = resumable.Evaluation(
        name,
        resumable.folder(options.output, found_model),
        model=found_model.about(),
        config=deciding,
        data={f"{name}:{task.name}": task.fingerprint(options.tested)},
        seed=options.seed,
    )
    return work.run(
        partial(ask_all, options, found_model, task, work),
        partial(show, f"{options.task} by {found_model.name_or_path}", work.folder),
        overwrite=options.overwrite,
        tables=heat_maps.files(work.folder, name),
    )


def ask_all(
    options: argparse.Namespace, found_model: "FoundModel", task: Task, work: "Evaluation"
) -> dict[str, Any]:
    """Load the model, and return the figures of its answers."""
    from tape_ds.scoring import exact_match
    from tape_ds.scoring.resumable import Cost

    model = found_model.load()
    cost = Cost(found_model.device)
    tests = task.tests(options.tested)
    # the longest first: memory that does not suffice shows at once, and processes end together
    longest_first = sorted(tests, key=lambda test: -test.tokens)
    answered = work.run_jobs(
        [(str(test), test) for test in longest_first], partial(ask, model, options)
    )
    scores = [answered[str(test)] for test in tests]
    if not isinstance(task, ArithmeticTask):
        return {
            "task": task.name,
            "tests": scores,
            "cost": cost.taken(samples=options.samples * len(tests)),
        }
    return {
        "task": task.name,
        "sizes": list(task.sizes),
        "trained": list(options.trained),
        "means": exact_match.means(scores, options.trained),
        "remark": remark_on_positions(found_model, task.tokens(options.tested)),
        "cells": scores,
        "cost": cost.taken(samples=sum(cell["samples"] for cell in scores)),
    }


def remark_on_positions(found_model: "FoundModel", longest: int) -> str | None:
    """Return a sentence on a model whose positions are spread over shorter texts (randpe) than the grid has."""
    position_options = getattr(found_model.config, "position_options", None) or {}
    spread = position_options.get("evaluation_length")
    if spread is None or spread >= longest:
        return None
    return (
        f"its positions are spread over texts of {spread} tokens (position_options.evaluation_length) and the "
        f"grid's longest have {longest}: beyond, they count on by steps that training has never seen"
    )


def show(title: str, folder: Path, figures: Mapping[str, Any]) -> None:
    """Write tables and picture, and print the means."""
    from tape_ds.scoring import heat_maps

    written = heat_maps.write_generated(figures, folder, title)
    print(heat_maps.generated_summary(figures))
    print(", ".join(map(str, written)))


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[Problem]]:
    """Return the options, None where the run's are taken, and what is wrong with them whatever the model."""
    parser = Parser(prog="tape-ds evaluate generated", description=__doc__)
    add_model(parser)
    add_output(parser)
    group = parser.add_argument_group("generated tasks")
    group.add_argument("--task", choices=tuple(TASKS), help="default: what the run was trained on")
    group.add_argument(
        "--digits",
        type=int,
        nargs="+",
        metavar="N",
        help="the grid's last lengths, one for both operands or one for each (default: test_digits of the run, or "
        "twice the trained ones)",
    )
    group.add_argument(
        "--trained",
        type=int,
        nargs="+",
        metavar="N",
        help="longest operands of the training sequences, written alike (default: those of the run)",
    )
    group.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="of the tests of a task of addressing (default: test_lengths of the run)",
    )
    group.add_argument(
        "--task_options",
        type=json.loads,
        metavar="JSON",
        help="of such a task, in place of the run's, one by one",
    )
    group.add_argument(
        "--samples",
        type=int,
        help=f"in each cell (default: {SAMPLES}), or sequences of each test of addressing (default: {ROWS})",
    )
    group.add_argument(
        "--batch_size",
        type=int,
        default=BATCH_SIZE,
        help="samples that are asked at once (default: %(default)s)",
    )
    options = parser.parse_args(argv)

    problems = below_one(options, "batch_size")
    if options.samples is not None and not 1 <= options.samples <= MOST:
        problems.append(
            Problem("--samples", options.samples, "out of range", f"give 1 to {MOST:,}")
        )
    for name in ("digits", "trained"):
        lengths = vars(options)[name]
        if lengths is not None and not (len(lengths) <= 2 and min(lengths) >= 1):
            text = " ".join(map(str, lengths))
            problems.append(
                Problem(f"--{name}", text, "not one or two lengths", "give for example 12, or 12 8")
            )
    if options.seed < 0:
        problems.append(Problem("--seed", options.seed, "negative", "give 0 or more"))
    return options, problems


def prepare(options: argparse.Namespace, model: "FoundModel", problems: list[Problem]) -> Task:
    """Return the task; ``options`` are complete afterwards."""
    from tape_ds.scoring.models import check_lengths

    problems += complete(options, model)
    raise_if_any(problems)
    task = generated.make(options.task, options.task_options or {})
    # ids as well as tokens: a model of another task may have the same digits in another order
    if model.tokenizer().get_vocab() != ids_of(task.vocabulary):
        wrong = f"its tokens are not those of {options.task}"
        problems.append(
            Problem(
                "model", model.name_or_path, wrong, "give a model that tape-ds generated trained"
            )
        )
    if isinstance(task, ArithmeticTask):
        for size, most, name in zip(options.tested, task.largest, task.sizes, strict=True):
            if size > most:
                wrong = f"{task.name} has at most {most:,} {name}"
                problems.append(Problem("--digits", size, wrong, "give less"))
        problems += check_lengths("--digits (in tokens)", [task.tokens(options.tested)], model)
    else:
        tokens = [task.tokens((length,)) for length in options.tested]
        problems += check_lengths("--lengths (in tokens)", tokens, model)
    raise_if_any(problems)
    return task


def complete(options: argparse.Namespace, model: "FoundModel") -> list[Problem]:
    """Fill in ``tested``, and what was not given, from the record of the model's run; return what is wrong."""
    config = recorded(model)
    if options.task is None:
        options.task = config.get("task")
    if options.task is None:
        problems = [unrecorded(model, "task", "what it was trained on")]
        if options.trained is None:
            problems.append(unrecorded(model, "trained", "the length of its training operands"))
        return problems
    # a record of another task decides nothing here
    own = config if options.task == config.get("task") else {}
    task = TASKS[options.task]
    if isinstance(task, ArithmeticTask):
        return complete_arithmetic(options, model, task, own)
    return complete_addressing(options, model, own)


def recorded(model: "FoundModel") -> Mapping[str, Any]:
    """Return the recipe that a model was trained with, if it was one of generated tasks."""
    if model.record is None:
        return {}
    file = model.folder.parent / RESULTS / "run.json"
    if not file.is_file():
        return {}
    config = results.load(file).config
    if config.get("task") in TASKS:
        return config
    return {}


def unrecorded(model: "FoundModel", option: str, what: str) -> Problem:
    return Problem(
        f"--{option}", None, f"{model.name_or_path} has no record of {what}", f"give --{option}"
    )


def unread(options: argparse.Namespace, *names: str) -> list[Problem]:
    """Return a problem for each of these options that was given, although the task does not have it."""
    problems = []
    for name in names:
        value = vars(options)[name]
        if value is not None:
            problems.append(
                Problem(f"--{name}", value, f"{options.task} does not have it", "leave it out")
            )
    return problems


def complete_arithmetic(
    options: argparse.Namespace, model: "FoundModel", task: ArithmeticTask, own: Mapping[str, Any]
) -> list[Problem]:
    problems = unread(options, "lengths", "task_options")
    options.samples = options.samples or SAMPLES
    longest = None
    if options.trained is None and "max_digits" in own:
        options.trained = [own["max_digits"], own.get("max_digits_second") or own["max_digits"]]
        longest = own.get("test_digits")
    if options.trained is None:
        return [*problems, unrecorded(model, "trained", "the length of its training operands")]
    # one length for both operands, or one for each
    options.trained = (options.trained[0], options.trained[-1])
    if options.digits:
        options.tested = (options.digits[0], options.digits[-1])
    else:
        options.tested = task.reached(options.trained, longest)
    return problems


def complete_addressing(
    options: argparse.Namespace, model: "FoundModel", own: Mapping[str, Any]
) -> list[Problem]:
    options.samples = options.samples or ROWS
    problems = unread(options, "digits", "trained")
    if problems:
        return problems
    given = {} if options.task_options is None else options.task_options
    if not isinstance(given, dict):
        example = """write for example '{"ignore": 0.9}'"""
        return [Problem("--task_options", given, "not a mapping", example)]
    options.task_options = own.get("task_options", {}) | given
    problems = generated.check(options.task, options.task_options)
    if problems:
        return problems
    options.tested = list(dict.fromkeys(options.lengths or own.get("test_lengths") or ()))
    if not options.tested:
        return [unrecorded(model, "lengths", "the lengths of its tests")]
    task = generated.make(options.task, options.task_options)
    assert isinstance(task, AddressingTask)
    for tested in options.tested:
        remedy = task.wrong_length(tested)
        if remedy is not None:
            problems.append(
                Problem("--lengths", tested, f"{options.task} has no such sequences", remedy)
            )
    return problems


def ask(model: "PreTrainedModel", options: argparse.Namespace, test: Test) -> dict[str, Any]:
    """Return the score of one test; for arithmetic a cell of the grid."""
    from tape_ds.scoring import exact_match, models

    samples = test.task.held_out(test.size, options.samples, options.seed)
    # the room that the longest test of the cell needs, whatever the model's own length
    with models.used_at(model, test.tokens):
        together = options.batch_size * test.tokens
        verdicts = exact_match.judge(model, test.task.vocabulary, samples, batch_tokens=together)
    if not isinstance(test.task, ArithmeticTask):
        return exact_match.AnswerCount.of(test, verdicts).to_dict()
    first, second = test.size
    return {
        "first": first,
        "second": second,
        "samples": len(samples),
        "correct": sum(map(all, verdicts)),
    }
