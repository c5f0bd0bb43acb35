"""Tasks drawn from a seed: how many answers are right, for each pair of operand lengths or each length of a text.

    tape-ds evaluate arithmetic runs/addition                      to the run's test_digits, 100 samples a cell
    tape-ds evaluate arithmetic runs/addition --digits 12 --samples 50
    tape-ds evaluate arithmetic MODEL --task addition --trained 6
    tape-ds evaluate arithmetic runs/addressing/look_back --lengths 48 72 96
    tape-ds evaluate arithmetic runs/addition_40 --batch_size 2000 --gpus 8

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
from typing import TYPE_CHECKING, Any

from tape_ds import results
from tape_ds.arguments import Parser, add_model, add_output, below_one
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

MOST = 10_000  # problems of a cell at most: more would take hours to find where there are few
SAMPLES = 100
ROWS = 1000
BATCH_SIZE = 400


@command
def main(argv: list[str] | None = None) -> int:
    """Check, ask, count, write, print."""
    options, problems = parse(argv)

    from tape_ds.scoring import exact_match, heat_maps, models, resumable
    from tape_ds.scoring.resumable import Cost

    found = models.find(options, problems)
    task = prepare(options, found, problems)
    is_arithmetic = isinstance(task, ArithmeticTask)
    name = "arithmetic" if is_arithmetic else "addressing"
    deciding = {option: vars(options)[option] for option in ("task", "samples", "batch_size")}
    if is_arithmetic:
        deciding |= {"trained": list(options.trained), "digits": list(options.tested)}
    else:
        deciding |= {"task_options": options.task_options, "lengths": options.tested}
    work = resumable.Evaluation(
        name,
        resumable.folder(options.output, found),
        model=found.about(),
        config=deciding,
        data={f"{name}:{task.name}": task.fingerprint(options.tested)},
        seed=options.seed,
    )

    def ask_all() -> dict[str, Any]:
        model = found.load()
        cost = Cost(found.device)
        tests = task.tests(options.tested)
        jobs = [(str(test), test) for test in sorted(tests, key=lambda test: -test.tokens)]
        answered = work.run_jobs(jobs, lambda test: ask(model, options, test))
        scores = [answered[str(test)] for test in tests]
        if not isinstance(task, ArithmeticTask):
            return {"task": task.name, "tests": scores, "cost": cost.taken(samples=options.samples * len(tests))}

        # a model whose positions are spread over shorter texts (randpe) than the grid has
        remark, longest = None, task.tokens(options.tested)
        spread = (getattr(found.config, "position_options", None) or {}).get("evaluation_length")
        if spread is not None and spread < longest:
            remark = (
                f"its positions are spread over texts of {spread} tokens (position_options.evaluation_length) and the "
                f"grid's longest have {longest}: beyond, they count on by steps that training has never seen"
            )
        return {
            "task": task.name,
            "sizes": list(task.sizes),
            "trained": list(options.trained),
            "means": exact_match.means(scores, options.trained),
            "remark": remark,
            "cells": scores,
            "cost": cost.taken(samples=sum(cell["samples"] for cell in scores)),
        }

    def show(figures: Mapping[str, Any]) -> None:
        title = f"{options.task} by {found.name_or_path}"
        written = heat_maps.write_generated(figures, work.folder, title)
        print(heat_maps.generated_summary(figures))
        print(", ".join(str(path) for path in written))

    shown = heat_maps.files(work.folder, name)
    return work.run(ask_all, show, overwrite=options.overwrite, tables=shown)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[Problem]]:
    """Return the options, None where the run's are taken, and what is wrong with them whatever the model."""
    parser = Parser(prog="tape-ds evaluate arithmetic", description=__doc__)
    add_model(parser)
    add_output(parser)
    group = parser.add_argument_group("arithmetic")
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
        "--task_options", type=json.loads, metavar="JSON", help="of such a task, in place of the run's, one by one"
    )
    group.add_argument(
        "--samples",
        type=int,
        help=f"in each cell (default: {SAMPLES}), or sequences of each test of addressing (default: {ROWS})",
    )
    group.add_argument(
        "--batch_size", type=int, default=BATCH_SIZE, help="samples that are asked at once (default: %(default)s)"
    )
    options = parser.parse_args(argv)

    problems = below_one(options, "batch_size")
    if options.samples is not None and not 1 <= options.samples <= MOST:
        problems.append(Problem("--samples", options.samples, "out of range", f"give 1 to {MOST:,}"))
    for name in ("digits", "trained"):
        lengths = vars(options)[name]
        if lengths is not None and not (len(lengths) <= 2 and min(lengths) >= 1):
            text = " ".join(map(str, lengths))
            problems.append(Problem(f"--{name}", text, "not one or two lengths", "give for example 12, or 12 8"))
    if options.seed < 0:
        problems.append(Problem("--seed", options.seed, "negative", "give 0 or more"))
    return options, problems


def prepare(options: argparse.Namespace, model: "FoundModel", problems: list[Problem]) -> Task:
    """Return the task; ``options`` are complete afterwards."""
    from tape_ds.scoring.models import check_lengths

    problems += complete(options, model)
    raise_if_any(problems)
    task = generated.make(options.task, options.task_options or {})
    if model.tokenizer().get_vocab() != ids_of(task.vocabulary):
        wrong = f"its tokens are not those of {options.task}"
        problems.append(Problem("model", model.name_or_path, wrong, "give a model that tape-ds arithmetic trained"))
    if isinstance(task, ArithmeticTask):
        problems += [
            Problem("--digits", size, f"{task.name} has at most {most:,} {name}", "give less")
            for size, most, name in zip(options.tested, task.largest, task.sizes, strict=True)
            if size > most
        ]
        problems += check_lengths("--digits (in tokens)", [task.tokens(options.tested)], model)
    else:
        tokens = [task.tokens((length,)) for length in options.tested]
        problems += check_lengths("--lengths (in tokens)", tokens, model)
    raise_if_any(problems)
    return task


def complete(options: argparse.Namespace, model: "FoundModel") -> list[Problem]:
    """Fill in ``tested``, and what was not given, from the record of the model's run; return what is wrong."""

    def unrecorded(option: str, what: str) -> Problem:
        return Problem(f"--{option}", None, f"{model.name_or_path} has no record of {what}", f"give --{option}")

    config: Mapping[str, Any] = {}
    if model.record is not None and (file := model.folder.parent / RESULTS / "run.json").is_file():
        stored = results.load(file).config
        config = stored if stored.get("task") in TASKS else {}
    options.task = options.task or config.get("task")
    untrained = unrecorded("trained", "the length of its training operands")
    if options.task is None:
        missing = unrecorded("task", "what it was trained on")
        return [missing, untrained] if options.trained is None else [missing]
    own = config if options.task == config.get("task") else {}
    task = TASKS[options.task]
    is_arithmetic = isinstance(task, ArithmeticTask)
    options.samples = options.samples or (SAMPLES if is_arithmetic else ROWS)
    useless = [
        Problem(f"--{name}", value, f"{options.task} does not have it", "leave it out")
        for name in (("lengths", "task_options") if is_arithmetic else ("digits", "trained"))
        if (value := vars(options)[name]) is not None
    ]

    if isinstance(task, ArithmeticTask):
        longest = None
        if options.trained is None and "max_digits" in own:
            options.trained = [own["max_digits"], own.get("max_digits_second") or own["max_digits"]]
            longest = own.get("test_digits")
        if options.trained is None:
            return [*useless, untrained]
        # one length for both operands, or one for each
        options.trained = (options.trained[0], options.trained[-1])
        digits = options.digits
        options.tested = (digits[0], digits[-1]) if digits else task.reached(options.trained, longest)
        return useless

    given = {} if options.task_options is None else options.task_options
    if useless or not isinstance(given, dict):
        example = """write for example '{"ignore": 0.9}'"""
        return useless or [Problem("--task_options", given, "not a mapping", example)]
    options.task_options = own.get("task_options", {}) | given
    options.tested = list(dict.fromkeys(options.lengths or own.get("test_lengths") or ()))
    if wrong := generated.check(options.task, options.task_options):
        return wrong
    if not options.tested:
        return [unrecorded("lengths", "the lengths of its tests")]
    made = generated.make(options.task, options.task_options)
    assert isinstance(made, AddressingTask)
    return [
        Problem("--lengths", length, f"{options.task} has no such sequences", remedy)
        for length in options.tested
        if (remedy := made.wrong_length(length)) is not None
    ]


def ask(model: "PreTrainedModel", options: argparse.Namespace, test: Test) -> dict[str, Any]:
    """Return the score of one test; for arithmetic a cell of the grid."""
    from tape_ds.scoring import exact_match, models

    samples = test.task.held_out(test.size, options.samples, options.seed)
    with models.used_at(model, test.tokens):
        together = options.batch_size * test.tokens
        verdicts = exact_match.judge(model, test.task.vocabulary, samples, batch_tokens=together)
    if not isinstance(test.task, ArithmeticTask):
        return exact_match.AnswerCount.of(test, verdicts).to_dict()
    first, second = test.size
    return {"first": first, "second": second, "samples": len(samples), "correct": sum(map(all, verdicts))}
