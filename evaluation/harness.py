"""The work of ``python -m evaluation harness``, which :mod:`evaluation.harness_options` describes."""

import argparse
import hashlib
import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from evaluation import harness_options
from tape_ds.errors import Problem, collecting, command, is_main_process, raise_if_any

if TYPE_CHECKING:
    from lm_eval.config.evaluate_config import EvaluatorConfig

    from evaluation.harness_tasks import Loaded
    from evaluation.journal import Evaluation
    from evaluation.language_model import HarnessModel
    from evaluation.models import FoundModel

NAME = "harness"


@command
def main(argv: list[str] | None = None) -> int:
    """Check, load the tasks, ask, write, print."""
    options = harness_options.parse(argv)
    found, config = prepare(options)
    from evaluation import harness_results, harness_tasks, journal

    tasks = harness_tasks.load(config)
    settings = harness_options.settings(options, config)
    if config.apply_chat_template:
        template = json.dumps(found.tokenizer().chat_template, sort_keys=True)
        settings["chat_template"] = hashlib.sha256(template.encode()).hexdigest()
    evaluation = journal.Evaluation(
        NAME,
        journal.folder(options.output, found),
        model=found.about(),
        config=settings,
        data=tasks.fingerprints(config.num_fewshot),
        seed=config.seed[0],
    )
    return evaluation.run(
        lambda: evaluate(evaluation, options, config, found, tasks),
        lambda figures: print(harness_results.table(figures)),
        overwrite=options.overwrite,
    )


def prepare(options: argparse.Namespace) -> tuple["FoundModel", "EvaluatorConfig"]:
    """Return the model, not loaded yet, and lm-eval's configuration.

    Raises:
        UserError: everything wrong with the command line, but for the tasks.
    """
    from evaluation import models
    from evaluation.options import check_lengths

    problems: list[Problem] = harness_options.check(options)
    with collecting(problems):
        config = harness_options.configure(options)
    found = models.find(options, problems)
    with collecting(problems):
        options.max_length = options.max_length or found.native_length
        problems += check_lengths("--max_length", [options.max_length], found)
    raise_if_any(problems)
    if options.trust_remote_code or not found.tokenizer_has_code:
        config.metadata = {"tokenizer": found.tokenizer_name_or_path} | config.metadata
    return found, config


def evaluate(
    evaluation: "Evaluation",
    options: argparse.Namespace,
    config: "EvaluatorConfig",
    found: "FoundModel",
    tasks: "Loaded",
) -> dict[str, Any]:
    """Answer what no earlier start has answered; the figures, on the first rank alone."""
    from evaluation import harness_results
    from evaluation.cost import Cost
    from evaluation.language_model import HarnessModel

    cost = Cost(found.device)
    lm = HarnessModel(
        found,
        batch_size=options.batch_size,
        max_length=options.max_length,
        truncate=options.truncate,
        use_cache=options.use_cache,
        chunk=options.chunk,
        seed=config.seed[2] or 0,
        run_jobs=evaluation.run_jobs,
    )
    lm.tasks = tasks.tasks
    results = ask(lm, config, tasks, evaluation)
    taken = cost.taken()
    return {} if results is None else {**harness_results.figures(results, lm.cut), "cost": taken}


def ask(
    lm: "HarnessModel", config: "EvaluatorConfig", tasks: "Loaded", evaluation: "Evaluation"
) -> Mapping[str, Any] | None:
    """lm-eval's own results, written as it writes them and sent where it was told to; None but on the first rank."""
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    tracker = EvaluationTracker(**(config.hf_hub_log_args | {"output_path": str(evaluation.folder / "lm_eval")}))
    seeds = dict(
        zip(("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed"), config.seed, strict=True)
    )
    taken = inspect.signature(simple_evaluate).parameters
    arguments = {each.name: getattr(config, each.name) for each in fields(config) if each.name in taken}
    arguments |= {"cache_requests": False} | config.cache_requests
    arguments |= {
        **seeds,
        "model": lm,
        "model_args": {"pretrained": lm.found.name_or_path},
        "batch_size": lm.batch_size,
        "device": str(lm.device),
        "use_cache": None,
        "verbosity": None,
        "task_manager": tasks,
        "evaluation_tracker": tracker,
        "bootstrap_iters": 100_000 if is_main_process() else 0,
        "fewshot_as_multiturn": config.fewshot_as_multiturn or False,
    }
    results = simple_evaluate(**arguments)
    if results is None:
        return None
    samples = results.pop("samples", None)
    track(config, results, samples)
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in samples or {}:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    return results


def track(config: "EvaluatorConfig", results: Mapping[str, Any], samples: Mapping[str, Any] | None) -> None:
    """Send results to Weights & Biases or trackio, where lm-eval's options ask for it."""
    from lm_eval.loggers import TrackioLogger, WandbLogger

    loggers = [WandbLogger(config.wandb_args, config.wandb_config_args)] if config.wandb_args else []
    loggers += [TrackioLogger(config.trackio_args)] if config.trackio_args else []
    for logger in loggers:
        logger.post_init(results)
        logger.log_eval_result()
        if samples is not None:
            logger.log_eval_samples(samples)
        (logger.run if isinstance(logger, WandbLogger) else logger).finish()


if __name__ == "__main__":
    sys.exit(main())
