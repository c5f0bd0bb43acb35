"""lm-eval's tasks, asked of any model of this project: MMLU, ARC, RULER, passkey, SCROLLS and thousands more.

    python -m evaluation harness runs/demo --tasks tape_table9
    python -m evaluation harness smollm2 --tasks arc_easy hellaswag --num_fewshot 5 --batch_size 8 --limit 100
    python -m evaluation harness MODEL --tasks tape_needle --max_length 32k --metadata '{"max_seq_lengths": [16384]}'
    torchrun --nproc_per_node 8 -m evaluation harness MODEL --tasks tape_pose_standard --batch_size auto

Groups of this project: tape_table9 (MMLU's four parts, ARC), tape_pose_standard, tape_passkey, tape_scrolls,
tape_needle and tape_ruler. All other options are lm-eval's own. A request that is longer than --max_length is an error
before work starts, or is cut by --truncate, and what was cut is counted.

Written to the folder of results: ``harness.json``, and below ``lm_eval`` what lm-eval writes itself. An interrupted
evaluation goes on when it is started again, on any number of processes.
Exit codes: 0 done; 2 something to mend.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation import options as shared
from tape_ds.arguments import Parser, below_one
from tape_ds.errors import Problem, UserError
from tape_ds.scoring import CHUNK

if TYPE_CHECKING:
    from lm_eval.config.evaluate_config import EvaluatorConfig

TASKS = Path(__file__).parent / "tasks"
"""Tasks of this project, always included."""
WAYS = ("left", "middle")
"""Where a context that is too long is cut."""
REFUSED = {
    ("--model", "-M"): "give the model as it is, without an option",
    ("--model_args", "-a"): "use --dtype, --device, --tokenizer, --trust_remote_code, --max_length",
    ("--output_path", "-o"): "use --output",
    ("--max_batch_size",): "use --batch_size, a number or auto",
}
"""lm-eval's options that have another name here."""
NUMBERS = (
    "num_fewshot",
    "limit",
    "samples",
    "gen_kwargs",
    "apply_chat_template",
    "system_instruction",
    "fewshot_as_multiturn",
    "predict_only",
    "seed",
)
"""lm-eval's options that decide numbers."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """This project's options for the model, and lm-eval's own for everything else."""
    parser = _theirs()
    for names, remedy in REFUSED.items():
        problem = Problem(names[0], "", "has another name here", remedy)
        parser.add_argument(
            *names, dest=argparse.SUPPRESS, nargs="?", action=_Refuse, const=problem, help=argparse.SUPPRESS
        )
    shared.add_model(parser)
    shared.add_output(parser, seed=False)  # lm-eval's own four: published numbers' shots were drawn with its defaults
    group = parser.add_argument_group("reading")
    group.add_argument(
        "--batch_size",
        "-b",
        default="1",
        help="sequences that are read at once, or auto: as many as have 16k tokens together (default: 1)",
    )
    group.add_argument(
        "--max_length", type=shared.length, help="of prompt and answer (default: the model's own length)"
    )
    group.add_argument("--truncate", choices=WAYS, help="cut contexts that are longer, and count it; else an error")
    shared.add_cache(group, "-c")  # answers are kept, and taken up by the next start, in any case
    group.add_argument(
        "--chunk", type=int, default=CHUNK, help="tokens of a prompt that are read at once (default: %(default)s)"
    )
    return parser.parse_args(argv)


def configure(options: argparse.Namespace) -> "EvaluatorConfig":
    """lm-eval's configuration of the options that are its own; a file of ``--config`` stands behind the command line.

    Raises:
        UserError: options that contradict each other, or such a file.
    """
    from dataclasses import fields

    from lm_eval.config.evaluate_config import EvaluatorConfig

    ours = {"model", "device", "use_cache", "batch_size", "model_args", "output_path", "max_batch_size"}
    known = {each.name for each in fields(EvaluatorConfig)} - ours
    given = argparse.Namespace(**{name: value for name, value in vars(options).items() if name in known})
    given.output_path = "here"  # where samples go is known, and lm-eval wants to hear so
    try:
        config = EvaluatorConfig.from_cli(given)
        # a file may hold names as one string, and no seed
        listed = [config.tasks] if isinstance(config.tasks, str) else config.tasks
        config.tasks = [name for each in listed for name in str(each).split(",")]
        config.seed = config.seed or [None] * 4
    except (ValueError, TypeError, OSError) as error:
        text = " ".join(str(error).split())
        raise UserError(Problem("options", options.config or "", text, "see --help")) from error
    if not config.tasks:
        raise UserError(Problem("--tasks", None, "none is given", "such as tape_table9, arc_easy, mmlu_*"))
    return config


def check(options: argparse.Namespace) -> list[Problem]:
    """Return what is wrong whatever the model."""
    problems = below_one(options, "chunk")
    if options.limit is not None and options.limit <= 0:
        problems.append(Problem("--limit", options.limit, "leaves no question", "give a number, or a share below 1"))
    if options.num_fewshot is not None and options.num_fewshot < 0:
        problems.append(Problem("--num_fewshot", options.num_fewshot, "less than none", "give 0 or more"))
    if not (options.batch_size == "auto" or (options.batch_size.isdecimal() and int(options.batch_size) > 0)):
        problems.append(
            Problem("--batch_size", options.batch_size, "no number of sequences", "give 1 or more, or auto")
        )
    return problems


def settings(options: argparse.Namespace, config: "EvaluatorConfig") -> dict[str, Any]:
    """Return every option that decides numbers."""
    theirs = {name: getattr(config, name) for name in NUMBERS}
    ours = {name: vars(options)[name] for name in ("batch_size", "max_length", "truncate", "use_cache", "chunk")}
    metadata = {name: each for name, each in config.metadata.items() if name != "tokenizer"}  # the model's hash has it
    return {"tasks": config.tasks, **theirs, **ours, "metadata": metadata}


def _theirs() -> argparse.ArgumentParser:
    """Return the parser of ``lm_eval run``, so that every option of it is here by itself and means the same; later
    options replace earlier ones of the same name."""
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    from lm_eval._cli.run import Run

    class Replacing(Parser):
        def __init__(self, **kwargs: Any):
            super().__init__(**(kwargs | {"conflict_handler": "resolve", "allow_abbrev": False}))

    parser: argparse.ArgumentParser = Run(Replacing().add_subparsers())._parser
    parser.prog, parser.usage, parser.epilog = "python -m evaluation harness", None, None
    parser.description = __doc__
    return parser


class _Refuse(argparse.Action):
    """An option of lm-eval that has another name here."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        raise UserError(Problem(self.const.field, values, self.const.wrong, self.const.remedy))
