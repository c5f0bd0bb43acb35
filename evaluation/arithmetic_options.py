"""Tasks drawn from a seed: how many answers are right, for each pair of operand lengths or each length of a text.

    python -m evaluation arithmetic runs/addition                      to the run's test_digits, 100 samples a cell
    python -m evaluation arithmetic runs/addition --digits 12 --samples 50
    python -m evaluation arithmetic MODEL --task addition --trained 6
    python -m evaluation arithmetic runs/addressing/look_back --lengths 48 72 96
    torchrun --nproc_per_node 8 -m evaluation arithmetic runs/addition_40 --batch_size 2000

Samples are held out: no training sequence has their operands. An answer is right if greedy decoding gives the whole
of it and then the end of text, which one pass over prompt and answer decides; only some wrong answers are written out.
The mean of the whole grid includes the trained lengths (of a grid to twice their length a quarter), so the mean of the
cells beyond them, where either operand is longer, is given as well.

Written to the folder of results: ``arithmetic.json`` (with wrong answers of each cell), ``arithmetic.png``,
``arithmetic.csv``, ``arithmetic.md``; of a task of addressing, whose answers are counted token by token, the same but
for the picture, as ``addressing``. Exit codes: 0 done; 2 something to mend.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tape_ds import results
from tape_ds.arguments import Parser
from tape_ds.data.generated import tasks
from tape_ds.data.generated.addressing import AddressingTask
from tape_ds.data.generated.arithmetic import ArithmeticTask
from tape_ds.data.generated.tasks import TASKS
from tape_ds.errors import Problem
from tape_ds.run_folder import RESULTS
from tape_ds.scoring import options as shared

if TYPE_CHECKING:
    from tape_ds.scoring.models import FoundModel

MOST = 10_000
"""Problems of a cell at most: more would take hours to find where there are few."""
SAMPLES = 100
ROWS = 1000
BATCH_SIZE = 400


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's options; what was not given is None, and taken from the run."""
    parser = Parser(prog="python -m evaluation arithmetic", description=__doc__)
    shared.add_model(parser)
    shared.add_output(parser)
    group = parser.add_argument_group("arithmetic")
    group.add_argument("--task", choices=tuple(TASKS), help="default: what the run was trained on")
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
        help="longest operands of the training sequences, written alike (default: those of the run)",
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
    found = []
    if options.samples is not None and not 1 <= options.samples <= MOST:
        found.append(Problem("--samples", options.samples, "out of range", f"give 1 to {MOST:,}"))
    if options.batch_size < 1:
        found.append(Problem("--batch_size", options.batch_size, "too few", "give 1 or more"))
    for name in ("digits", "trained"):
        given = vars(options)[name]
        if given is not None and not (len(given) <= 2 and min(given) >= 1):
            text = " ".join(map(str, given))
            found.append(Problem(f"--{name}", text, "not one or two lengths", "give for example 12, or 12 8"))
    if options.seed < 0:
        found.append(Problem("--seed", options.seed, "negative", "give 0 or more"))
    return found


def check_reach(field: str, last: Sequence[int], task: ArithmeticTask) -> list[Problem]:
    """Check that the task has problems as long as the grid's last."""
    return [
        Problem(field, size, f"{task.name} has at most {most:,} {name}", "give less")
        for size, most, name in zip(last, task.largest, task.sizes, strict=True)
        if size > most
    ]


def complete(options: argparse.Namespace, model: "FoundModel") -> list[Problem]:
    """Fill in what was not given from the record of the model's run, and ``tested``; return what is wrong."""
    config = config_of_run(model)
    options.task = options.task or config.get("task")
    if options.task is None:
        wrong = f"{model.name_or_path} does not say what it was trained on"
        missing = [Problem("--task", None, wrong, "give --task")]
        return missing + (_complete_digits(options, {}, model) if options.trained is None else [])
    own = config if options.task == config.get("task") else {}
    is_arithmetic = isinstance(TASKS[options.task], ArithmeticTask)
    wrong_options = [
        Problem(f"--{name}", value, f"{options.task} has nothing of that", "leave it out")
        for name in (("lengths", "task_options") if is_arithmetic else ("digits", "trained"))
        if (value := vars(options)[name]) is not None
    ]
    options.samples = options.samples or (SAMPLES if is_arithmetic else ROWS)
    if is_arithmetic:
        return wrong_options + _complete_digits(options, own, model)
    return wrong_options or _complete_lengths(options, own, model)


def _complete_digits(options: argparse.Namespace, own: Mapping[str, Any], model: "FoundModel") -> list[Problem]:
    longest = None
    if options.trained is None and "max_digits" in own:
        options.trained = [own["max_digits"], own.get("max_digits_second") or own["max_digits"]]
        longest = own.get("test_digits")
    if options.trained is None:
        wrong = f"{model.name_or_path} does not say how long its training operands were"
        return [Problem("--trained", None, wrong, "give --trained")]
    # one length for both operands, or one for each
    options.trained = (options.trained[0], options.trained[-1])
    task = TASKS[options.task]
    assert isinstance(task, ArithmeticTask)
    given = options.digits
    options.tested = (given[0], given[-1]) if given else task.reached(options.trained, longest)
    return []


def _complete_lengths(options: argparse.Namespace, own: Mapping[str, Any], model: "FoundModel") -> list[Problem]:
    given = {} if options.task_options is None else options.task_options
    if not isinstance(given, dict):
        return [Problem("--task_options", given, "not a mapping", """write for example '{"ignore": 0.9}'""")]
    options.task_options = own.get("task_options", {}) | given
    options.tested = list(dict.fromkeys(options.lengths or own.get("test_lengths") or ()))
    if wrong := tasks.check(options.task, options.task_options):
        return wrong
    if not options.tested:
        wrong_lengths = f"{model.name_or_path} does not say how long its tests are"
        return [Problem("--lengths", None, wrong_lengths, "give --lengths")]
    task = tasks.make(options.task, options.task_options)
    assert isinstance(task, AddressingTask)
    return [
        Problem("--lengths", each, f"{options.task} has no such sequences", remedy)
        for each in options.tested
        if (remedy := task.wrong_length(each)) is not None
    ]


def config_of_run(model: "FoundModel") -> Mapping[str, Any]:
    """Return the configuration of the run that trained ``model`` on a generated task; empty if none did."""
    if model.record is None:
        return {}
    file = model.folder.parent / RESULTS / "run.json"
    config = results.load(file).config if file.is_file() else {}
    return config if config.get("task") in TASKS else {}


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return every option that decides numbers, once :func:`complete` has filled them in."""
    common = {name: vars(options)[name] for name in ("task", "samples", "batch_size")}
    if isinstance(TASKS[options.task], ArithmeticTask):
        lengths = {"trained": list(options.trained), "digits": list(options.tested)}
        return {**common, "use_cache": options.use_cache, **lengths}
    return {**common, "task_options": options.task_options, "lengths": options.tested}
