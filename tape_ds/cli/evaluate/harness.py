"""lm-eval's tasks, asked of any model of this project: MMLU, ARC, RULER, passkey, SCROLLS and thousands more.

    tape-ds evaluate harness runs/demo --tasks tape_table9
    tape-ds evaluate harness smollm2 --tasks arc_easy hellaswag --num_fewshot 5 --batch_size 8 --limit 100
    tape-ds evaluate harness MODEL --tasks tape_needle --max_length 32k --metadata '{"max_seq_lengths": [16384]}'
    tape-ds evaluate harness MODEL --tasks tape_scrolls --metadata '{"data_dir": "scrolls/"}'
    tape-ds evaluate harness MODEL --tasks tape_pose_standard --batch_size auto --num_gpus 8

Groups of this project: tape_table9 (MMLU's four parts, ARC), tape_pose_standard, tape_passkey, tape_scrolls,
tape_needle and tape_ruler. All other options are lm-eval's own. A request that is longer than --max_length is an error
before the first answer, or is cut by --truncate, and what was cut is counted.

Written to the folder of results: ``harness.json``, below ``lm_eval`` what lm-eval writes itself, and for SCROLLS
``scrolls/NAME.json``, the texts by id that its benchmark takes. An interrupted evaluation resumes when it is started
again. Exit codes: 0 done; 2 a mistake.
"""

import argparse
import hashlib
import inspect
import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tape_ds.arguments import Parser, add_model, add_output, length
from tape_ds.errors import Problem, UserError, collecting, command, is_main_process, raise_if_any

if TYPE_CHECKING:
    from lm_eval.config.evaluate_config import EvaluatorConfig

    from tape_ds.scoring.harness_tasks import LoadedTasks
    from tape_ds.scoring.models import FoundModel
    from tape_ds.scoring.resumable import Evaluation

NAME = "harness"
REFUSED = {
    ("--model", "-M"): "give the model as it is, without an option",
    ("--model_args", "-a"): "use --dtype, --device, --tokenizer, --trust_remote_code, --max_length",
    ("--output_path", "-o"): "use --output",
    ("--max_batch_size",): "use --batch_size, a number or auto",
    ("--use_cache", "-c"): "leave it out: answers are kept in the folder of results until the last one is there",
    ("--wandb_args", "--wandb_config_args", "--trackio_args", "--hf_hub_log_args"): "upload the folder of results",
}
"""lm-eval's options that this command sets itself."""
NUMBERS = (
    *("num_fewshot", "limit", "samples", "gen_kwargs", "seed", "predict_only"),
    *("apply_chat_template", "system_instruction", "fewshot_as_multiturn"),
)
"""lm-eval's options that decide numbers."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check, load the tasks, ask, write, print."""
    options = parse(argv)
    found, config = prepare(options)
    from tape_ds.scoring import harness_tasks, resumable

    deciding = settings(options, config)
    if config.apply_chat_template:
        template = json.dumps(found.tokenizer().chat_template, sort_keys=True)
        deciding["chat_template"] = hashlib.sha256(template.encode()).hexdigest()
    config.metadata = {"max_tokens": options.max_length} | config.metadata  # the tasks of SCROLLS cut by it
    tasks = harness_tasks.load(config)
    work = resumable.Evaluation(
        NAME,
        resumable.folder(options.output, found),
        model=found.about(),
        config=deciding,
        data=tasks.fingerprints(config.num_fewshot),
        seed=config.seed[0],
    )
    return work.run(
        lambda: evaluate(work, options, config, found, tasks),
        lambda figures: print(harness_tasks.table(figures)),
        overwrite=options.overwrite,
        required=harness_tasks.submission_files(work.folder, tasks.tasks),
    )


def prepare(options: argparse.Namespace) -> tuple["FoundModel", "EvaluatorConfig"]:
    """Return the model, not loaded yet, and lm-eval's configuration."""
    from tape_ds.scoring import models

    problems = []
    if options.limit is not None and options.limit <= 0:
        problems.append(Problem("--limit", options.limit, "leaves no question", "give a number, or a share below 1"))
    if options.num_fewshot is not None and options.num_fewshot < 0:
        problems.append(Problem("--num_fewshot", options.num_fewshot, "less than none", "give 0 or more"))
    size = options.batch_size
    if not (size == "auto" or (size.isdecimal() and int(size) > 0)):
        problems.append(Problem("--batch_size", size, "no number of sequences", "give 1 or more, or auto"))
    with collecting(problems):
        config = configure(options)
    found = models.find(options, problems)
    with collecting(problems):
        options.max_length = options.max_length or found.native_length
        problems += models.check_lengths("--max_length", [options.max_length], found)
    raise_if_any(problems)
    if options.trust_remote_code or not found.tokenizer_has_code:
        config.metadata = {"tokenizer": found.tokenizer_name_or_path} | config.metadata
    return found, config


def evaluate(
    work: "Evaluation",
    options: argparse.Namespace,
    config: "EvaluatorConfig",
    found: "FoundModel",
    tasks: "LoadedTasks",
) -> dict[str, Any]:
    """Return the figures, on the first rank alone; answers of an earlier start are reused."""
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    from tape_ds.distributed.rank_sync import RankSync
    from tape_ds.scoring import harness_tasks, resumable
    from tape_ds.scoring.language_model import HarnessModel
    from tape_ds.scoring.resumable import Cost

    # lm-eval's options as its function takes them
    names = inspect.signature(simple_evaluate).parameters
    arguments = {each.name: getattr(config, each.name) for each in fields(config) if each.name in names}
    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    arguments |= {"cache_requests": False} | config.cache_requests | dict(zip(seeds, config.seed, strict=True))
    arguments |= {"verbosity": None, "fewshot_as_multiturn": config.fewshot_as_multiturn or False}

    with ExitStack() as held:
        resumable.from_first(lambda: work.lock(held))
        cost = Cost(found.device)
        lm = HarnessModel(
            found, max_length=options.max_length, truncate=options.truncate, batch_size=options.batch_size
        )
        lm.tasks = tasks.tasks
        tracker = EvaluationTracker(output_path=str(work.folder / "lm_eval"))
        asked = harness_tasks.submission_files(work.folder, tasks.tasks)
        results = simple_evaluate(
            **arguments
            | {
                "model": lm,
                "model_args": {"pretrained": found.name_or_path},
                "batch_size": options.batch_size,
                "device": str(lm.device),
                "use_cache": str(work.journal / "answers"),
                "task_manager": tasks,
                "evaluation_tracker": tracker,
                "bootstrap_iters": 100_000 if is_main_process() else 0,
                "log_samples": config.log_samples or bool(asked),
            }
        )
        lm.measure(())  # where all answers were known, nothing was asked
        each_cut = RankSync().objects(lm.cut)
        taken = cost.taken()
    if results is None:
        return {}
    samples = results.pop("samples", None)
    work.path.unlink(missing_ok=True)  # killed from here on, no other result is left with these texts
    harness_tasks.write_submission(work.folder, samples or {})
    shown = samples if config.log_samples and samples else {}
    tracker.save_results_aggregated(results=results, samples=shown or None)
    for name, each in shown.items():
        tracker.save_results_samples(task_name=name, samples=each)
    cut = {name: sum(each[name] for each in each_cut) for name in lm.cut}
    return {**harness_tasks.figures(results, cut), "cost": taken}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return this project's options for the model, and lm-eval's own for everything else."""
    parser = _theirs()
    for names, remedy in REFUSED.items():
        parser.add_argument(
            *names, dest=argparse.SUPPRESS, nargs="?", action=_Refuse, const=remedy, help=argparse.SUPPRESS
        )
    add_model(parser)
    add_output(parser, seed=False)  # lm-eval's own four: published numbers' shots were drawn with its defaults
    group = parser.add_argument_group("reading")
    group.add_argument(
        "--batch_size",
        "-b",
        default="1",
        help="sequences that are read at once, or auto: as many as have 16k tokens together (default: 1)",
    )
    group.add_argument("--max_length", type=length, help="of prompt and answer (default: the model's own length)")
    group.add_argument(
        "--truncate", choices=("left", "middle"), help="cut prompts that are longer, and count it; else an error"
    )
    return parser.parse_args(argv)


def configure(options: argparse.Namespace) -> "EvaluatorConfig":
    """Return lm-eval's configuration from its options; the command line overrides ``--config``."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    ours = {"model", "device", "use_cache", "batch_size", "model_args", "output_path", "max_batch_size"}
    known = {each.name for each in fields(EvaluatorConfig)} - ours
    given = argparse.Namespace(**{name: value for name, value in vars(options).items() if name in known})
    given.output_path = "here"  # --log_samples asks for one
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


def settings(options: argparse.Namespace, config: "EvaluatorConfig") -> dict[str, Any]:
    """Return every option that decides numbers."""
    theirs = {name: getattr(config, name) for name in NUMBERS}
    ours = {name: vars(options)[name] for name in ("batch_size", "max_length", "truncate")}
    metadata = {name: each for name, each in config.metadata.items() if name != "tokenizer"}  # the model's hash has it
    return {"tasks": config.tasks, **theirs, **ours, "metadata": metadata}


def _theirs() -> argparse.ArgumentParser:
    """Return the parser of ``lm_eval run``, so that this command has all its options. A later option replaces an
    earlier one of the same name."""
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    from lm_eval._cli.run import Run

    class Replacing(Parser):
        def __init__(self, **kwargs: Any):
            super().__init__(**(kwargs | {"conflict_handler": "resolve", "allow_abbrev": False}))

    parser: argparse.ArgumentParser = Run(Replacing().add_subparsers())._parser
    parser.prog, parser.usage, parser.epilog = "tape-ds evaluate harness", None, None
    parser.description = __doc__
    return parser


class _Refuse(argparse.Action):
    """An option of lm-eval that this command sets itself."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        raise UserError(Problem(self.option_strings[0], values, "has no use in this command", self.const))
