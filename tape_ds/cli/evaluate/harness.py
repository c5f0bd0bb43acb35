"""lm-eval's tasks, asked of any model of this project: MMLU, ARC, passkey, SCROLLS and thousands more.

    tape-ds evaluate harness runs/demo --tasks tape_table9
    tape-ds evaluate harness smollm2 --tasks arc_easy hellaswag --num_fewshot 5 --batch_size 8 --limit 100
    tape-ds evaluate harness MODEL --tasks tape_scrolls --metadata '{"data_dir": "scrolls/"}'
    tape-ds evaluate harness MODEL --tasks tape_pose_standard --batch_size auto --gpus 8

Groups of this project: tape_table9 (MMLU's four parts, ARC), tape_pose_standard, tape_passkey and tape_scrolls; for
RULER there is ``tape-ds evaluate ruler``. All other options are lm-eval's own, but for those of its model, its folder
of results, its cache and its trackers. A request that is longer than --max_length is an error before the first answer,
or is cut by --truncate, and what was cut is counted.

Written to the folder of results: ``harness.json``, below ``lm_eval`` what lm-eval writes itself, and for SCROLLS
``scrolls/NAME.json``, the texts by id that its benchmark takes. An interrupted evaluation resumes when it is started
again: answers are kept until the last one is there. Exit codes: 0 done; 2 a mistake.
"""

import argparse
import hashlib
import inspect
import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import storage
from tape_ds.arguments import Parser, add_model, add_output, length, values_of
from tape_ds.errors import Problem, collecting, command, is_main_process, raise_if_any
from tape_ds.mappings import without

if TYPE_CHECKING:
    from lm_eval.config.evaluate_config import EvaluatorConfig

    from tape_ds.scoring.models import FoundModel

SET_HERE = {
    *("--model", "--model_args", "--output_path", "--max_batch_size", "--use_cache"),
    *("--wandb_args", "--wandb_config_args", "--trackio_args", "--hf_hub_log_args"),
}
"""lm-eval's options that are unknown here, because this command sets them itself."""
NUMBERS = (
    *("num_fewshot", "limit", "samples", "gen_kwargs", "seed", "predict_only"),
    *("apply_chat_template", "system_instruction", "fewshot_as_multiturn"),
)
"""lm-eval's options that decide numbers."""
READING = ("batch_size", "max_length", "truncate")
"""This command's options that decide numbers."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check, load the tasks, ask, write, print."""
    options = parse(argv)
    found_model, config = prepare(options)
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    from tape_ds.data.prompting import beginning
    from tape_ds.data.scrolls import examples as scrolls
    from tape_ds.distributed.rank_sync import RankSync
    from tape_ds.scoring import harness_tasks, resumable
    from tape_ds.scoring.language_model import HarnessModel
    from tape_ds.scoring.resumable import Cost

    deciding: dict[str, Any] = {"tasks": config.tasks}
    for name in NUMBERS:
        deciding[name] = getattr(config, name)
    deciding |= values_of(options, READING)
    # the model's hash has the tokenizer
    deciding["metadata"] = without(config.metadata, ["tokenizer"])
    if config.apply_chat_template:
        template = json.dumps(found_model.tokenizer().chat_template, sort_keys=True)
        deciding["chat_template"] = hashlib.sha256(template.encode()).hexdigest()
    # the tasks of SCROLLS cut by it
    config.metadata = {"max_tokens": options.max_length} | config.metadata
    tasks = harness_tasks.load_tasks(config)
    rolling = tasks.rolling()
    begin = beginning(found_model.tokenizer()) if rolling else []
    # scores that lm-eval's own model, and earlier versions of this one, do not give
    if begin:
        deciding["text_begins_with"] = found_model.tokenizer().decode(begin)
    work = resumable.Evaluation(
        "harness",
        resumable.folder(options.output, found_model),
        model=found_model.about(),
        config=deciding,
        data=tasks.fingerprints(config.num_fewshot),
        seed=config.seed[0],
    )
    submission = {}
    for name in scrolls.NAMES:
        if f"tape_scrolls_{name}" in tasks.tasks:
            submission[f"tape_scrolls_{name}"] = work.folder / "scrolls" / f"{name}.json"

    # lm-eval's options as its function takes them
    taken_names = inspect.signature(simple_evaluate).parameters
    arguments: dict[str, Any] = {}
    for field in fields(config):
        if field.name in taken_names:
            arguments[field.name] = getattr(config, field.name)
    arguments |= {"cache_requests": False} | config.cache_requests
    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    arguments |= zip(seeds, config.seed, strict=True)
    arguments |= {
        "verbosity": None,
        "fewshot_as_multiturn": config.fewshot_as_multiturn or False,
        "batch_size": options.batch_size,
        "model_args": {"pretrained": found_model.name_or_path},
        "task_manager": tasks,
        "use_cache": str(work.journal / "answers"),
        "device": str(found_model.device),
        # the intervals are of the first rank alone
        "bootstrap_iters": 100_000 if is_main_process() else 0,
        "log_samples": config.log_samples or bool(submission),
    }

    def evaluate() -> dict[str, Any]:
        """Return the figures, on the first rank alone; answers of an earlier start are reused."""
        with ExitStack() as held:
            resumable.from_first(lambda: work.lock(held))
            cost = Cost(found_model.device)
            lm = HarnessModel(found_model, **values_of(options, READING))
            lm.tasks = tasks.tasks
            tracker = EvaluationTracker(output_path=str(work.folder / "lm_eval"))
            results = simple_evaluate(**arguments | {"model": lm, "evaluation_tracker": tracker})
            # where all answers were known, nothing was asked
            lm.measure(())
            each_cut = RankSync().objects(lm.cut)
            taken = cost.taken()
        if results is None:
            return {}
        samples = results.pop("samples", None) or {}
        # killed from here on, no other result is left with these texts
        work.path.unlink(missing_ok=True)
        for name in scrolls.NAMES:
            (work.folder / "scrolls" / f"{name}.json").unlink(missing_ok=True)
        for name, file in submission.items():
            rows = sorted(samples[name], key=lambda row: row["doc_id"])
            texts = {row["doc"]["id"]: row["filtered_resps"][0] for row in rows}
            storage.write_text(file, json.dumps(texts) + "\n")
        # SCROLLS needs them for its texts, also where they were not asked for
        shown = samples if config.log_samples else {}
        tracker.save_results_aggregated(results=results, samples=shown or None)
        for name, samples_of_task in shown.items():
            tracker.save_results_samples(task_name=name, samples=samples_of_task)
        cut = dict.fromkeys(lm.cut, 0)
        for cut_there in each_cut:
            for name in cut:
                cut[name] += cut_there[name]
        stored = {**harness_tasks.figures(results, cut), "cost": taken}
        if begin:
            stored["unlike_lm_eval"] = {"tasks": rolling, "unscored": deciding["text_begins_with"]}
        return stored

    return work.run(
        evaluate,
        lambda figures: print(harness_tasks.table(figures)),
        overwrite=options.overwrite,
        required=[*submission.values()],
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return this project's options for the model, and lm-eval's own for everything else."""
    # it logs its imports, before the first message of this command
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    from lm_eval._cli.run import Run

    parser = Parser(prog="tape-ds evaluate harness", description=__doc__)
    add_model(parser)
    # lm-eval's own four: published numbers' shots were drawn with its defaults
    add_output(parser, seed=False)
    group = parser.add_argument_group("reading")
    group.add_argument(
        "--batch_size",
        "-b",
        default="1",
        help="sequences that are read at once, or auto: as many as have 16k tokens together (default: 1)",
    )
    group.add_argument(
        "--max_length", type=length, help="of prompt and answer (default: the model's own length)"
    )
    group.add_argument(
        "--truncate",
        choices=("left",),
        help="cut prompts that are longer, and count it; else an error",
    )
    group = parser.add_argument_group("lm-eval")
    for action in Run(argparse.ArgumentParser().add_subparsers())._parser._actions:
        if not {*action.option_strings} & (SET_HERE | parser._option_string_actions.keys()):
            group._add_action(action)
    return parser.parse_args(argv)


def prepare(options: argparse.Namespace) -> tuple["FoundModel", "EvaluatorConfig"]:
    """Return the model, not loaded yet, and lm-eval's configuration; the command line overrides ``--config``."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    from tape_ds.models.loading import model_folder
    from tape_ds.scoring import models

    problems = []
    if options.limit is not None and options.limit <= 0:
        problems.append(
            Problem(
                "--limit", options.limit, "leaves no question", "give a number, or a share below 1"
            )
        )
    if options.num_fewshot is not None and options.num_fewshot < 0:
        problems.append(
            Problem("--num_fewshot", options.num_fewshot, "less than none", "give 0 or more")
        )
    size = options.batch_size
    if not (size == "auto" or (size.isdecimal() and int(size) > 0)):
        problems.append(
            Problem("--batch_size", size, "no number of sequences", "give 1 or more, or auto")
        )

    ours = {
        "model",
        "device",
        "use_cache",
        "batch_size",
        "model_args",
        "output_path",
        "max_batch_size",
    }
    # lm-eval has options of these names, which mean something else to it
    known = {field.name for field in fields(EvaluatorConfig)} - ours
    given = argparse.Namespace(**values_of(options, known & vars(options).keys()))
    # --log_samples asks for one
    given.output_path = "here"
    try:
        config = EvaluatorConfig.from_cli(given)
        # a file may hold names as one string, and no seed
        listed = [config.tasks] if isinstance(config.tasks, str) else config.tasks
        names: list[str] = []
        for entry in listed:
            names += str(entry).split(",")
        config.tasks = names
        config.seed = config.seed or [None] * 4
    except (ValueError, TypeError, OSError) as error:
        problems.append(
            Problem("options", options.config or "", " ".join(str(error).split()), "see --help")
        )
    else:
        if not config.tasks:
            problems.append(
                Problem("--tasks", None, "none is given", "such as tape_table9, arc_easy, mmlu_*")
            )

    found_model = models.find(options, problems)
    with collecting(problems):
        options.max_length = options.max_length or found_model.native_length
        problems += models.check_lengths("--max_length", [options.max_length], found_model)
    raise_if_any(problems)

    # RULER's tasks load the tokenizer that the metadata name with the code that it carries; old tokenizers have a list
    # there, and a configuration's code runs too if the tokenizer names no class
    folder = Path(model_folder.resolve(found_model.tokenizer_name_or_path, with_weights=False))
    has_code = False
    for name in ("tokenizer_config.json", "config.json"):
        if (folder / name).is_file():
            named = json.loads((folder / name).read_text(encoding="utf-8")).get("auto_map") or {}
            has_code |= isinstance(named, list) or bool(
                {"AutoTokenizer", "AutoConfig"} & named.keys()
            )
    if options.trust_remote_code or not has_code:
        config.metadata = {"tokenizer": found_model.tokenizer_name_or_path} | config.metadata
    return found_model, config
