"""Write the answers and summaries that SCROLLS asks for, and score them.

    python -m evaluation scrolls generate runs/scrolls/qasper --datasets qasper
    python -m evaluation scrolls generate MODEL --datasets all --max_tokens 16k --batch_size 4
    python -m evaluation scrolls generate smollm2 --datasets stdlib --limit 20          no download
    torchrun --nproc_per_node 8 -m evaluation scrolls generate MODEL --datasets narrative_qa

Every text is greedy (the most likely token, again and again) up to the end of text, 200 tokens of an answer or 1,000 of
a summary, whatever the model's own generation settings say. What of a document does not fit is cut as in fine-tuning,
counted and printed. The published code draws summaries among the 3 most likely tokens without a seed, so nobody gets
its texts again: --sample_summaries does that with one, and is not the default.

Written to the folder of results: scrolls.json, and for each data set scrolls/NAME.json (texts by id) and
scrolls/NAME_metrics.json, both as the official scorer has them. Questions of quality that are marked as hard are also
scored by themselves. Of a split without published answers (test) the texts are written and nothing is scored: they are
what the benchmark's own tools make a submission of. Exit codes: 0 done; 2 something to mend.
"""

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
from evaluation.scrolls import official, outcome, writing
from evaluation.scrolls.writing import Asked, Limits
from tape_ds.data.scrolls import datasets, examples
from tape_ds.data.scrolls.datasets import SPLITS
from tape_ds.errors import Problem, UserError, command, raise_if_any
from tape_ds.scoring.generation import ends_of

NAME = "scrolls"
EVERY = "all"


@command
def main(argv: list[str] | None = None) -> int:
    """Check, write, score, store, print."""
    options = parse(argv)
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
    with job.joined() as (rank, _):
        raise_if_any(evaluation.check(options.overwrite))
        texts = [evaluation.folder / NAME / f"{each.dataset.name}.json" for each in asked]
        stored = evaluation.stored() if all(path.is_file() for path in texts) else None
        if stored is None:
            figures = write_all(evaluation, options, model, tokenizer, asked)
        else:
            figures = stored.figures
        if rank == 0:
            print(outcome.table(figures, limits_of(options)))
            print(f"{'complete already' if stored is not None else 'written'}: {evaluation.path}", flush=True)
    return 0


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
    figures = {
        "split": options.split,
        "datasets": {name: entry for entries in scored.values() for name, entry in entries.items()},
        "cost": cost.taken(**writing.tokens(by_name)),
    }
    evaluation.finish(figures)
    return figures


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


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command's options."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m evaluation scrolls generate", description=__doc__, formatter_class=style, allow_abbrev=False
    )
    shared.add_model(parser)
    shared.add_output(parser)
    add_data(parser.add_argument_group("questions"))
    add_texts(parser.add_argument_group("texts"))
    options = parser.parse_args(argv)
    given = [each for name in options.datasets for each in (datasets.DATASETS if name == EVERY else [name])]
    options.datasets = list(dict.fromkeys(given))
    return options


def add_data(group: Any) -> None:
    """Options that say what is asked."""
    known = ", ".join((EVERY, *datasets.available()))
    group.add_argument("--datasets", nargs="+", required=True, metavar="NAME", help=f"any of: {known}")
    group.add_argument("--split", default="validation", choices=SPLITS, help="default: validation")
    group.add_argument(
        "--data_dir", help="folder with NAME/SPLIT.jsonl or NAME.zip, or such a zip; default: the hub's tau/scrolls"
    )
    group.add_argument("--limit", type=int, metavar="N", help="only the first N questions of each data set")


def add_texts(group: Any) -> None:
    """Options that say how it is answered."""
    group.add_argument(
        "--max_tokens", type=shared.length, default=8192, metavar="N", help="of prompt and text together (default: 8k)"
    )
    group.add_argument("--answer_tokens", type=int, default=200, metavar="N", help="at most (default: 200)")
    group.add_argument("--summary_tokens", type=int, default=1000, metavar="N", help="at most (default: 1000)")
    group.add_argument(
        "--reference_format",
        action="store_true",
        help="for a model that was fine-tuned so: prompts cut as TAPE's published code cuts them",
    )
    group.add_argument(
        "--sample_summaries",
        nargs="?",
        type=int,
        const=3,
        metavar="K",
        help="draw each token of a summary among the K most likely (3 where no K is given; the published code has 3, "
        "and 50 for gov_report); --seed chooses the texts",
    )
    group.add_argument("--batch_size", type=int, default=1, metavar="N", help="prompts at once (default: 1)")
    group.add_argument(
        "--no_cache", dest="use_cache", action="store_false", help="read everything again for every new token"
    )


if __name__ == "__main__":
    sys.exit(main())
