"""Tasks drawn from a seed: how many answers are right, for each pair of operand lengths or each length of a text.

    python -m evaluation arithmetic runs/addition                      to the run's test_digits, 100 samples a cell
    python -m evaluation arithmetic runs/addition --digits 12 --samples 50
    python -m evaluation arithmetic MODEL --task addition --trained 6
    python -m evaluation arithmetic runs/addressing/look_back --lengths 48 72 96
    torchrun --nproc_per_node 8 -m evaluation arithmetic runs/addition_40 --batch_size 2000

Samples are held out: no training sequence has their operands. Answers are greedy, and right when the whole answer
stands there and then the end of text. The mean of the whole grid has the trained lengths in it (of a grid to twice
their length a quarter), so the mean of the cells beyond them stands beside it: that is where either operand is longer.

Written to the folder of results: ``arithmetic.json`` (with wrong answers of each cell), ``arithmetic.png``,
``arithmetic.csv``, ``arithmetic.md``; of a task of addressing, whose answers are counted token by token, the same but
for the picture, as ``addressing``. Exit codes: 0 done; 2 something to mend.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluation import options as shared
from tape_ds import results
from tape_ds.arguments import Parser
from tape_ds.data.addressing import tasks
from tape_ds.data.addressing.lengths import wrong_length
from tape_ds.data.addressing.tasks import TASKS as ADDRESSING
from tape_ds.data.arithmetic.tasks import TASKS
from tape_ds.errors import Problem
from tape_ds.run_folder import RESULTS
from tape_ds.scoring.arithmetic import both, check_counts, check_sizes

if TYPE_CHECKING:
    from evaluation.models import FoundModel

SAMPLES = 100
ROWS = 1000
BATCH_SIZE = 400


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's options; what was not given is None, and the run's to say."""
    parser = Parser(prog="python -m evaluation arithmetic", description=__doc__)
    shared.add_model(parser)
    shared.add_output(parser)
    group = parser.add_argument_group("arithmetic")
    group.add_argument("--task", choices=(*TASKS, *ADDRESSING), help="default: what the run was trained on")
    group.add_argument(
        "--digits",
        type=int,
        nargs="+",
        metavar="N",
        help="the grid's last lengths, one for both operands or one for each (default: what the run was to be tested "
        "to, or twice the trained ones)",
    )
    group.add_argument(
        "--trained",
        type=int,
        nargs="+",
        metavar="N",
        help="longest operands of the training sequences, written alike (default: what the run says)",
    )
    group.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="of the tests of a task of addressing (default: what the run was to be tested at)",
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
    shared.add_cache(group)
    return parser.parse_args(argv)


def check(options: argparse.Namespace) -> list[Problem]:
    """Return what is wrong whatever the model."""
    found = check_counts("--", 1 if options.samples is None else options.samples, options.batch_size)
    found += check_sizes("--digits", options.digits) + check_sizes("--trained", options.trained)
    if options.seed < 0:
        found.append(Problem("--seed", options.seed, "negative", "give 0 or more"))
    return found


def complete(options: argparse.Namespace, model: "FoundModel") -> list[Problem]:
    """Fill in what was not given from what the model's run says of itself; what remains unknown."""
    asked = config_of_run(model)
    options.task = options.task or asked.get("task")
    wrong = list(_of_other_tasks(options))
    if options.task in ADDRESSING:
        options.samples = options.samples or ROWS
        return wrong or _complete_lengths(options, asked, model)
    options.samples = options.samples or SAMPLES
    longest = None
    if options.trained is None and "max_digits" in asked and options.task == asked["task"]:
        options.trained = [asked["max_digits"], asked.get("max_digits_second") or asked["max_digits"]]
        longest = asked.get("test_digits")
    missing = [
        Problem(f"--{name}", None, f"{model.name_or_path} does not say {what}", f"give --{name}")
        for name, what in (("task", "what it was trained on"), ("trained", "how long its training operands were"))
        if vars(options)[name] is None
    ]
    if not missing:
        options.trained = trained = both(options.trained)
        options.digits = both(options.digits or TASKS[options.task].tested(*trained, longest))
    return wrong + missing


def _of_other_tasks(options: argparse.Namespace) -> Iterator[Problem]:
    """Options that were given and that the task does not have."""
    foreign = ("digits", "trained") if options.task in ADDRESSING else ("lengths", "task_options")
    for name in foreign:
        if options.task is not None and (value := vars(options)[name]) is not None:
            yield Problem(f"--{name}", value, f"{options.task} has nothing of that", "leave it out")


def _complete_lengths(options: argparse.Namespace, asked: Mapping[str, Any], model: "FoundModel") -> list[Problem]:
    """The same for a task of addressing."""
    own = asked if options.task == asked.get("task") else {}
    given = {} if options.task_options is None else options.task_options
    if not isinstance(given, dict):
        return [Problem("--task_options", given, "not a mapping", """write for example '{"ignore": 0.9}'""")]
    options.task_options = own.get("task_options", {}) | given
    options.lengths = list(dict.fromkeys(options.lengths or own.get("test_lengths") or ()))
    if wrong := tasks.check(options.task, options.task_options):
        return wrong
    if not options.lengths:
        return [
            Problem("--lengths", None, f"{model.name_or_path} does not say how long its tests are", "give --lengths")
        ]
    task = tasks.make(options.task, options.task_options)
    remedies = {each: wrong_length(task, each) for each in options.lengths}
    return [
        Problem("--lengths", each, f"{options.task} has no such sequences", remedy)
        for each, remedy in remedies.items()
        if remedy is not None
    ]


def config_of_run(model: "FoundModel") -> Mapping[str, Any]:
    """Return the configuration of the arithmetic run that trained ``model``; empty where none did."""
    if model.record is None:
        return {}
    file = model.folder.parent / RESULTS / "run.json"
    config = results.load(file).config if file.is_file() else {}
    return config if config.get("task") in (*TASKS, *ADDRESSING) else {}


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return every option that decides numbers, once :func:`complete` has filled them in."""
    if options.task in ADDRESSING:
        return {name: vars(options)[name] for name in ("task", "task_options", "lengths", "samples", "batch_size")}
    lengths = {name: list(vars(options)[name]) for name in ("trained", "digits")}
    return {name: vars(options)[name] for name in ("task", "samples", "batch_size", "use_cache")} | lengths
