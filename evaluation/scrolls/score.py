"""Score a file of predictions as the official SCROLLS scorer does.

    python -m evaluation scrolls score runs/evaluation/my-model/scrolls/qasper.json --dataset qasper
    python -m evaluation scrolls score quality.json --dataset quality_hard --data_dir scrolls/

PREDICTIONS is one JSON object of texts by id. Ids that are missing or that nobody asked for are an error, as they are
there. Prints the scores and writes DATASET_metrics.json beside the predictions, or into --output.
Exit codes: 0 done; 2 something to mend.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluation import options as shared
from evaluation.scrolls import official
from tape_ds.arguments import Parser
from tape_ds.data.scrolls import examples
from tape_ds.data.scrolls.examples import Example
from tape_ds.errors import Problem, collecting, command, raise_if_any


@command
def main(argv: list[str] | None = None) -> int:
    """Read, check ids, score, write, print."""
    options = parse(argv)
    predictions, asked = prepare(options)
    found = official.score(options.dataset, predictions, asked)
    content = official.metrics_file(options.dataset, found, predictions, asked)
    folder = Path(options.predictions).parent if options.output is None else Path(options.output)
    path = official.write(content, folder / f"{options.dataset}_metrics.json", indent=4)
    print(json.dumps(content, indent=4))
    if found.standard_error is not None:
        print(f"standard error of the score over {found.examples:,} examples: {found.standard_error:.2f}")
    print(f"written: {path}")
    return 0


def prepare(options: argparse.Namespace) -> tuple[dict[str, str], list[Example]]:
    """The predictions and the questions they answer.

    Raises:
        UserError: everything wrong with either, and ids of one that the other lacks.
    """
    problems: list[Problem] = []
    predictions: dict[str, str] = {}
    asked: list[Example] = []
    with collecting(problems):
        predictions = official.read_predictions(options.predictions)
    readable = not problems
    with collecting(problems, "--{}"):
        asked = official.read_examples(options.dataset, options.split, options.data_dir)
    if readable and asked:
        problems += official.check_ids(predictions, [each.id for each in asked], _others(options))
    raise_if_any(problems)
    return predictions, asked


def _others(options: argparse.Namespace) -> list[str]:
    """Ids that a file of predictions may hold besides those that count: of the questions that are not hard."""
    if options.dataset != official.HARD:
        return []
    return [each.id for each in examples.read(official.WHOLE, options.split, options.data_dir)]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command's options."""
    parser = Parser(prog="python -m evaluation scrolls score", description=__doc__)
    parser.add_argument("predictions", help="JSON file of texts by id")
    parser.add_argument("--dataset", required=True, metavar="NAME", help=f"one of: {', '.join(official.names())}")
    shared.add_questions(parser)
    parser.add_argument("--output", help="folder for DATASET_metrics.json; default: that of the predictions")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
