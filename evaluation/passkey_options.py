"""Passkeys: whether a model finds a number anywhere in a long text, as a heat map of depth and length.

    python -m evaluation passkey runs/demo --lengths 4k 8k 16k
    python -m evaluation passkey smollm2 --lengths 1k 2k 4k 8k --depths 0 0.25 0.5 0.75 1 --trials 5
    python -m evaluation passkey MODEL --form pose --depths 11      PoSE's filler, depths 0, 0.1, ... 1
    python -m evaluation passkey MODEL --protocol published         the prompts of LongLoRA's and TAPE's figure
    python -m evaluation passkey MODEL --protocol multikey          one key among many, after RULER
    torchrun --nproc_per_node 8 -m evaluation passkey MODEL --lengths 32k 64k 128k

A prompt with its reply has at most ``length`` tokens, whatever the tokenizer; the key stands behind ``depth`` of the
filler. Replies are greedy, whatever the model's own generation settings say. One is right when its first integer is the
key; that it begins with the key's token ids (LongLoRA's rule) is counted beside it.

Written to the folder of results: ``passkey.json`` (every reply), ``passkey.png``, ``passkey.csv``, ``passkey.md``.
Exit codes: 0 done; 2 something to mend.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from evaluation import options as shared
from tape_ds.arguments import Parser, below_one
from tape_ds.data.passkey import FORMS
from tape_ds.data.passkey_protocols import PUBLISHED_LENGTHS, PUBLISHED_TRIALS
from tape_ds.errors import Problem
from tape_ds.scoring import CHUNK

LENGTHS = tuple(1024 * thousands for thousands in (1, 2, 4, 8))
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
TRIALS = 5
NEW_TOKENS = 10
"""PoSE's; LongLoRA's rule looks at the first few of them."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's options; what was not given is the protocol's default."""
    parser = Parser(prog="python -m evaluation passkey", description=__doc__)
    shared.add_model(parser)
    shared.add_output(parser)
    group = parser.add_argument_group("passkeys")
    group.add_argument(
        "--protocol",
        default="grid",
        choices=("grid", "published", "multikey"),
        help="grid: keys at chosen depths (default); published: LongLoRA's filler, keys and places, numpy's seeds 0 to "
        "19, at nominal lengths of which 3.75 characters a token are taken; multikey: keys in one text, asked for by "
        "name",
    )
    group.add_argument(
        "--lengths",
        type=shared.length,
        nargs="+",
        metavar="N",
        help="tokens, such as 4096 or 4k; default: 1k 2k 4k 8k, published: 1000 2000 ... 8000",
    )
    group.add_argument(
        "--depths",
        type=float,
        nargs="+",
        metavar="D",
        help="shares of the filler before the key, 0 to 1; or one whole number above 1: so many, evenly from 0 to 1 "
        "(default: 0 0.25 0.5 0.75 1)",
    )
    group.add_argument(
        "--trials",
        type=int,
        help="prompts at each depth of each length: --trials 4 --lengths 4k 8k asks 4 x 5 depths x 2 lengths = 40 "
        "(default: 5; published: 20 at each length)",
    )
    group.add_argument("--form", default="longlora", choices=tuple(FORMS), help="whose filler (default: longlora)")
    group.add_argument("--new_tokens", type=int, default=NEW_TOKENS, help="of a reply (default: %(default)s)")
    shared.add_cache(group)
    group.add_argument(
        "--chunk", type=int, default=CHUNK, help="tokens of a prompt read at once (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    published = options.protocol == "published"
    options.depths = options.depths or (list(DEPTHS) if options.protocol == "grid" else None)
    options.lengths = options.lengths or list(PUBLISHED_LENGTHS if published else LENGTHS)
    options.trials = options.trials if options.trials is not None else TRIALS if options.depths else PUBLISHED_TRIALS
    return options


def check(options: argparse.Namespace) -> list[Problem]:
    """Return what is wrong whatever the model. Turns a number of depths into shares."""
    found = below_one(options, "new_tokens", "chunk")
    if options.protocol != "grid" and options.depths is not None:
        remedy = "leave it out, or use --protocol grid"
        found.append(Problem("--depths", options.depths, f"{options.protocol} prompts draw their depths", remedy))
    elif options.depths is not None:
        shares = depths(options.depths)
        if len(set(shares)) < len(shares) or not all(0 <= each <= 1 for each in shares):
            remedy = "give shares such as 0 0.5 1, each once, or one whole number above 1 for an even grid"
            found.append(Problem("--depths", options.depths, "no shares from 0 to 1", remedy))
            shares = list(DEPTHS)  # all else is checked with these
        options.depths = shares
    if options.protocol != "grid" and options.form != "longlora":
        found.append(Problem("--form", options.form, f"{options.protocol} prompts have LongLoRA's", "leave it out"))
    if len(set(options.lengths)) < len(options.lengths):
        found.append(Problem("--lengths", options.lengths, "one is given twice", "give each once"))
    return found


def depths(given: Sequence[float]) -> list[float]:
    """Return depths as typed: shares, or how many on an even grid."""
    if len(given) == 1 and given[0] > 1 and given[0].is_integer():
        return [number / (given[0] - 1) for number in range(int(given[0]))]
    return sorted(given)


def count(options: argparse.Namespace) -> str:
    """Return how many prompts there are, as ``4 at each of 5 depths and 2 lengths = 40 prompts``."""
    lengths, depths = len(options.lengths), len(options.depths or [0])
    places = [f"{n} {name}{'s' * (n != 1)}" for n, name in ((depths, "depth"), (lengths, "length"))]
    where = " and ".join(places if options.depths else places[1:])
    return f"{options.trials} at each of {where} = {options.trials * depths * lengths:,} prompts"


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return every option that decides numbers."""
    names = ("protocol", "form", "lengths", "depths", "trials", "new_tokens", "use_cache", "chunk")
    return {name: vars(options)[name] for name in names} | {"lengths": sorted(options.lengths)}
