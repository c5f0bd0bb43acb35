"""The work of ``python -m evaluation arithmetic``, which :mod:`evaluation.arithmetic_options` describes."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from evaluation import arithmetic_options
from tape_ds.data.generated import tasks
from tape_ds.data.generated.arithmetic import ArithmeticTask
from tape_ds.data.generated.task import EOS, GeneratedSample, Task, Test, ids_of
from tape_ds.errors import Problem, command, raise_if_any
from tape_ds.scoring import exact_match, heat_maps, models, resumable
from tape_ds.scoring.exact_match import AnswerCount
from tape_ds.scoring.generation import continue_prompts
from tape_ds.scoring.models import FoundModel
from tape_ds.scoring.resumable import Cost

EXAMPLES = 3
"""Wrong answers of a cell that are kept."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check, ask, count, write, print."""
    options = arithmetic_options.parse(argv)
    model, task = prepare(options)
    name = "arithmetic" if isinstance(task, ArithmeticTask) else "addressing"
    evaluation = resumable.Evaluation(
        name,
        resumable.folder(options.output, model),
        model=model.about(),
        config=arithmetic_options.settings(options),
        data={f"{name}:{task.name}": task.fingerprint(options.tested)},
        seed=options.seed,
    )

    def show(figures: Mapping[str, Any]) -> None:
        written = heat_maps.write_generated(figures, evaluation.folder, f"{options.task} by {model.name_or_path}")
        print(heat_maps.generated_summary(figures))
        print(", ".join(str(path) for path in written))

    return evaluation.run(lambda: ask_all(evaluation, options, model, task), show, overwrite=options.overwrite)


def prepare(options: argparse.Namespace) -> tuple[FoundModel, Task]:
    """Return the model, not loaded yet, and the task; ``options`` are complete afterwards.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = arithmetic_options.check(options)
    model = models.find(options, problems)
    problems += arithmetic_options.complete(options, model)
    raise_if_any(problems)
    task = tasks.make(options.task, options.task_options or {})
    if model.tokenizer().get_vocab() != ids_of(task.vocabulary):
        wrong = f"its tokens are not those of {options.task}"
        problems.append(
            Problem("model", model.name_or_path, wrong, "give a model that launchers/train_arithmetic.py made")
        )
    if isinstance(task, ArithmeticTask):
        problems += arithmetic_options.check_reach("--digits", options.tested, task)
        problems += models.check_lengths("--digits (in tokens)", [task.most_tokens(options.tested)], model)
    else:
        tokens = [task.tokens((length,)) for length in options.tested]
        problems += models.check_lengths("--lengths (in tokens)", tokens, model)
    raise_if_any(problems)
    return model, task


def ask_all(
    evaluation: resumable.Evaluation, options: argparse.Namespace, found: FoundModel, task: Task
) -> dict[str, Any]:
    """Load the model, ask what no earlier start has asked, and return the figures."""
    model = found.load()
    cost = Cost(found.device)
    tests = task.tests(options.tested)
    jobs = [(str(test), test) for test in sorted(tests, key=lambda test: -test.tokens)]
    answered = evaluation.run_jobs(jobs, partial(ask, model, options))
    scores = [answered[str(test)] for test in tests]
    if not isinstance(task, ArithmeticTask):
        return {"task": task.name, "tests": scores, "cost": cost.taken(samples=options.samples * len(tests))}
    return {
        "task": task.name,
        "sizes": list(task.sizes),
        "trained": list(options.trained),
        "means": exact_match.means(scores, options.trained),
        "remark": spread_too_short(found.config, task.most_tokens(options.tested)),
        "cells": scores,
        "cost": cost.taken(samples=sum(cell["samples"] for cell in scores)),
    }


def ask(model: PreTrainedModel, options: argparse.Namespace, test: Test) -> dict[str, Any]:
    """Return the score of ``model`` in one test: of arithmetic a cell of the grid, with some wrong answers."""
    samples = test.task.held_out(test.size, options.samples, options.seed)
    with models.used_at(model, test.tokens):
        together = options.batch_size * test.tokens
        found = exact_match.judge(model, test.task.vocabulary, samples, batch_tokens=together)
        if not isinstance(test.task, ArithmeticTask):
            return AnswerCount.of(test, found).to_dict()
        wrong = [sample for sample, right in zip(samples, found, strict=True) if not all(right)]
        first, second = test.size
        return {
            "first": first,
            "second": second,
            "samples": len(samples),
            "correct": len(samples) - len(wrong),
            "wrong": write_out(model, test.task, wrong[:EXAMPLES], options.use_cache),
        }


def write_out(
    model: PreTrainedModel, task: ArithmeticTask, samples: Sequence[GeneratedSample], use_cache: bool
) -> list[dict[str, str]]:
    """Return the model's greedy replies to some problems, with the right answers."""
    if not samples:
        return []
    ids = ids_of(task.vocabulary)
    texts = [("".join(s.words[: s.answers[0]]), "".join(s.words[s.answers[0] : -1])) for s in samples]
    prompts = [[ids[letter] for letter in prompt] for prompt, _ in texts]
    room = max(len(sample.answers) for sample in samples)
    replies = continue_prompts(model, prompts, new_tokens=room, ends=[EOS], use_cache=use_cache)
    words = dict(enumerate(task.vocabulary))  # the embedding may have more rows
    return [
        {"prompt": prompt, "answer": answer, "reply": "".join(words.get(number, "?") for number in reply)}
        for (prompt, answer), reply in zip(texts, replies, strict=True)
    ]


def spread_too_short(config: Any, longest: int) -> str | None:
    """Return a remark on a model whose positions are spread over shorter texts (``randpe``) than the grid has."""
    spread = (getattr(config, "position_options", None) or {}).get("evaluation_length")
    if spread is None or spread >= longest:
        return None
    return (
        f"its positions are spread over texts of {spread} tokens (position_options.evaluation_length) and the grid's "
        f"longest have {longest}: beyond, they count on by steps that training has never seen"
    )


if __name__ == "__main__":
    sys.exit(main())
