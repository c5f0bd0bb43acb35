"""Perplexity by length, on any texts and by each of the published conventions, and loss by position.

    python -m evaluation perplexity smollm2 --lengths 2k 4k 8k 16k --spans 2k       held-out files of the stdlib
    python -m evaluation perplexity runs/demo --data bin:pg19.bin --lengths 1k 2k 4k 8k --convention all_tokens
    python -m evaluation perplexity MODEL --data "jsonl:books/*.jsonl#text" --lengths 32k 64k --convention new_tokens \\
        --stride 16k --bos --min_tokens 128k --max_tokens 128k --max_documents 20
    torchrun --nproc_per_node 8 -m evaluation perplexity MODEL --data bin:proof_pile.bin --lengths 8k

Three conventions, whose numbers do not compare: all_tokens scores every token of windows that overlap (LongLoRA, and
Table 2 of TAPE, --stride 256), new_tokens scores each token once with what its window has before it (PoSE, YaRN,
Hugging Face), blocks scores windows that do not overlap. What no window covers is counted, stored and shown.

Test sets as one file of token ids are made by tools/prepare_test_set.py. Written to the folder of results:
``perplexity.json``. Exit codes: 0 done; 2 something to mend.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tape_ds.arguments import Parser, below_one
from tape_ds.data.sources import SPLITS
from tape_ds.errors import Problem
from tape_ds.scoring import options as shared
from tape_ds.scoring.windows import CONVENTIONS, Scoring

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STRIDE = 256
"""The published one of all_tokens."""
SPLIT = "heldout"
SHORTEST = 2
"""Tokens of the shortest window and document: one to start from and one to predict."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's options."""
    parser = Parser(prog="python -m evaluation perplexity", description=__doc__)
    shared.add_model(parser)
    shared.add_output(parser)
    _add_data(parser.add_argument_group("data"))
    _add_scoring(parser.add_argument_group("scoring"))
    options = parser.parse_args(argv)
    options.lengths = sorted(set(options.lengths))
    return options


def _add_data(group: Any) -> None:
    group.add_argument("--data", nargs="+", default=["stdlib"], metavar="SPEC", help="as in recipes, or bin:FILE")
    group.add_argument("--split", default=SPLIT, choices=SPLITS, help="of stdlib and hub: (default: %(default)s)")
    group.add_argument("--min_tokens", type=shared.length, default=SHORTEST, metavar="N", help="shorter documents out")
    group.add_argument("--max_tokens", type=shared.length, metavar="N", help="documents are cut to this length")
    group.add_argument("--max_documents", type=int, metavar="N", help="of each source, the first long enough")
    group.add_argument(
        "--join", type=int, metavar="N", help="take N documents one after another for one; 1000: TAPE's eval.py"
    )


def _add_scoring(group: Any) -> None:
    group.add_argument("--lengths", type=shared.length, nargs="+", required=True, metavar="N", help="4096 or 4k, ...")
    group.add_argument(
        "--convention",
        default="blocks",
        choices=CONVENTIONS,
        help="all_tokens: LongLoRA's and TAPE's Table 2; new_tokens: PoSE's and Hugging Face's; blocks: disjoint "
        "(default)",
    )
    group.add_argument("--stride", type=shared.length, metavar="N", help=f"between windows (default: {STRIDE})")
    group.add_argument("--bos", action="store_true", help="begin every window with BOS, as PoSE does")
    group.add_argument("--first_window", action="store_true", help="only each document's first: PoSE's --truncate")
    group.add_argument("--drop_last", action="store_true", help="leave out each document's last: TAPE's eval.py")
    group.add_argument("--spans", type=shared.length, metavar="N", help="loss by position, in spans of N tokens, too")
    group.add_argument("--batch_size", type=int, default=1, metavar="N", help="windows at once (default: %(default)s)")
    group.add_argument("--chunk", type=int, default=1024, metavar="N", help="positions whose logits exist at once")


def check(options: argparse.Namespace) -> list[Problem]:
    """Return what is wrong with the numbers, by themselves and together."""
    problems = below_one(options, "max_documents", "join", "batch_size", "chunk")
    for name in ("lengths", "spans", "min_tokens", "max_tokens"):
        given = getattr(options, name)
        for value in given if isinstance(given, list) else [given]:
            if value is not None and value < SHORTEST:
                wrong = "a token and its target are needed"
                problems.append(Problem(f"--{name}", value, wrong, f"{SHORTEST} or more"))
    if options.max_tokens is not None and options.max_tokens < options.min_tokens:
        wrong = f"less than --min_tokens {options.min_tokens}"
        problems.append(Problem("--max_tokens", options.max_tokens, wrong, "the larger of the two, or more"))
    twice = sorted({spec for spec in options.data if options.data.count(spec) > 1})
    problems += [Problem("--data", spec, "named twice", "name it once") for spec in twice]
    return problems + _check_stride(options)


def _check_stride(options: argparse.Namespace) -> list[Problem]:
    """A stride that goes with the convention and leaves no token of any length out."""
    if options.convention == "blocks":
        remedy = "leave it out, or name --convention all_tokens or new_tokens"
        wrong = "blocks follow on one another, they have no stride"
        return [] if options.stride is None else [Problem("--stride", options.stride, wrong, remedy)]
    room = min(options.lengths) - options.bos
    stride = STRIDE if options.stride is None else options.stride
    if stride <= room:
        return []
    wrong = f"a window of {min(options.lengths)} tokens moves by {room} at most, or tokens are left out"
    return [Problem("--stride", stride, wrong, f"{room} or less, or longer --lengths")]


def scoring_of(options: argparse.Namespace, tokenizer: "PreTrainedTokenizerBase") -> Scoring:
    """Return which windows are scored."""
    return Scoring(
        convention=options.convention,
        stride=STRIDE if options.stride is None else options.stride,
        begin=tokenizer.bos_token_id if options.bos else None,
        first_window=options.first_window,
        drop_last=options.drop_last,
        spans=options.spans,
    )


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return every option that decides numbers (but for rounding, which --batch_size and --chunk may change)."""
    stride = STRIDE if options.stride is None and options.convention != "blocks" else options.stride
    scoring = {name: vars(options)[name] for name in ("convention", "bos", "first_window", "drop_last", "spans")}
    return {"lengths": options.lengths, "stride": stride, **scoring, **choice(options)}


def choice(options: argparse.Namespace) -> dict[str, Any]:
    """Return which documents are scored, and what of them."""
    return {name: vars(options)[name] for name in ("split", "min_tokens", "max_tokens", "max_documents", "join")}
