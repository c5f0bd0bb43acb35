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
from collections.abc import Sequence
from typing import Any

from evaluation import options as shared
from tape_ds.arguments import Parser, below_one
from tape_ds.data.scrolls import datasets
from tape_ds.errors import Problem

EVERY = "all"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's options."""
    parser = Parser(prog="python -m evaluation scrolls generate", description=__doc__)
    shared.add_model(parser)
    shared.add_output(parser)
    group = parser.add_argument_group("questions")
    known = ", ".join((EVERY, *datasets.available()))
    group.add_argument("--datasets", nargs="+", required=True, metavar="NAME", help=f"any of: {known}")
    shared.add_questions(group)
    group.add_argument("--limit", type=int, metavar="N", help="only the first N questions of each data set")
    _add_texts(parser.add_argument_group("texts"))
    options = parser.parse_args(argv)
    given = [each for name in options.datasets for each in (datasets.DATASETS if name == EVERY else [name])]
    options.datasets = list(dict.fromkeys(given))
    return options


def check(options: argparse.Namespace) -> list[Problem]:
    """Numbers below 1."""
    return below_one(options, "limit", "batch_size", "answer_tokens", "summary_tokens", "sample_summaries")


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return every option that decides numbers; batches and caches do by rounding alone."""
    names = ("datasets", "split", "limit", "max_tokens", "answer_tokens", "summary_tokens")
    more = ("reference_format", "sample_summaries", "batch_size", "use_cache")
    return {name: getattr(options, name) for name in (*names, *more)}


def _add_texts(group: Any) -> None:
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
    shared.add_cache(group)
