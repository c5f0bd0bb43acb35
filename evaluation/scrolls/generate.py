"""The work of ``python -m evaluation scrolls generate``, described in :mod:`evaluation.scrolls.generate_options`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from evaluation import job, journal, models
from evaluation import options as shared
from evaluation.cost import Cost
from evaluation.models import FoundModel
from evaluation.scrolls import generate_options, official, outcome, writing
from evaluation.scrolls.writing import Asked, Limits
from tape_ds.data.scrolls import datasets, examples
from tape_ds.errors import Problem, UserError, command, raise_if_any
from tape_ds.scoring.generation import ends_of

NAME = "scrolls"


@command
def main(argv: list[str] | None = None) -> int:
    """Check, write, score, store, print."""
    options = generate_options.parse(argv)
    model, tokenizer, asked = prepare(options)
    evaluation = journal.Evaluation(
        NAME,
        journal.folder(options, model),
        model=model.about(),
        config=settings(options),
        data={
            f"scrolls:{each.dataset.name}:{options.split}": examples.fingerprint(
                each.dataset.name, options.split, options.data_dir
            )
            for each in asked
        },
        seed=options.seed if options.sample_summaries else None,
    )
    return evaluation.run(
        lambda: write_all(evaluation, options, model, tokenizer, asked),
        lambda figures: print(outcome.table(figures, limits_of(options))),
        overwrite=options.overwrite,
        beside=[evaluation.folder / NAME / f"{each.dataset.name}.json" for each in asked],
    )


def prepare(options: argparse.Namespace) -> tuple[FoundModel, PreTrainedTokenizerBase, list[Asked]]:
    """The model, not loaded yet, and what it will be asked.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = check(options)
    asked: list[Asked] = []
    for name in options.datasets:
        try:
            dataset = datasets.find(name)
            rows = official.read_examples(name, options.split, options.data_dir, options.limit, unanswered=True)
            asked.append(Asked(dataset, tuple(rows)))
        except UserError as error:
            names = {"dataset": "--datasets"}
            found = [replace(each, field=names.get(each.field, f"--{each.field}")) for each in error.problems]
            problems += [each for each in found if each not in problems]
    try:
        model = models.find(options)
        tokenizer = model.tokenizer()
    except UserError as error:
        raise UserError([*problems, *error.problems]) from error
    problems += shared.check_lengths("--max_tokens", [options.max_tokens], model)
    problems += writing.check([each.dataset for each in asked], tokenizer, limits_of(options))
    raise_if_any(problems)
    return model, tokenizer, asked


def check(options: argparse.Namespace) -> list[Problem]:
    """Numbers below 1."""
    names = ("limit", "batch_size", "answer_tokens", "summary_tokens", "sample_summaries")
    given = {name: getattr(options, name) for name in names}
    return [
        Problem(f"--{name}", value, "is below 1", "give 1 or more")
        for name, value in given.items()
        if value is not None and value < 1
    ]


def write_all(
    evaluation: journal.Evaluation,
    options: argparse.Namespace,
    found: FoundModel,
    tokenizer: PreTrainedTokenizerBase,
    asked: Sequence[Asked],
) -> dict[str, Any]:
    """Load the model, write what no earlier start has written, score it, store everything."""
    limits = limits_of(options)
    model = found.load()
    cost = Cost(found.device)
    with models.used_at(model, limits.max_tokens):
        work = partial(writing.write, model, tokenizer, ends_of(model, tokenizer), limits)
        batches = writing.batches(asked, options.batch_size, alone=limits.top_k is not None)
        done = evaluation.carry_out([(batch.key, batch) for batch in batches], work)
    by_name: dict[str, dict[str, dict[str, Any]]] = {each.dataset.name: {} for each in asked}
    for batch in batches:
        by_name[batch.dataset.name] |= done[batch.key]
    native = (evaluation.started.model or {}).get("native_length")
    scored = {each.dataset.name: outcome.summarise(each, by_name[each.dataset.name], native) for each in asked}
    if job.rank_and_world()[0] == 0:
        kept = [
            path.name
            for each in asked
            for path in outcome.store(each, by_name[each.dataset.name], evaluation.folder / NAME)
        ]
        official.remove(kept, evaluation.folder / NAME)
    return {
        "split": options.split,
        "datasets": {name: entry for entries in scored.values() for name, entry in entries.items()},
        "cost": cost.taken(**writing.tokens(by_name)),
    }


def limits_of(options: argparse.Namespace) -> Limits:
    """How prompts and texts are made."""
    return Limits(
        max_tokens=options.max_tokens,
        answer_tokens=options.answer_tokens,
        summary_tokens=options.summary_tokens,
        reference_format=options.reference_format,
        use_cache=options.use_cache,
        top_k=options.sample_summaries,
        seed=options.seed,
    )


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Every option that decides numbers; batches and caches do by rounding alone."""
    names = ("datasets", "split", "limit", "max_tokens", "answer_tokens", "summary_tokens")
    more = ("reference_format", "sample_summaries", "batch_size", "use_cache")
    return {name: getattr(options, name) for name in (*names, *more)}


if __name__ == "__main__":
    sys.exit(main())
