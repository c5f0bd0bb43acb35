"""Passkeys: whether a model finds a number anywhere in a long text, as a heat map of depth and length.

    tape-ds evaluate passkey runs/demo --lengths 4k 8k 16k
    tape-ds evaluate passkey smollm2 --lengths 1k 2k 4k 8k --depths 0 0.25 0.5 0.75 1 --trials 5
    tape-ds evaluate passkey MODEL --form pose --depths 11      PoSE's filler, depths 0, 0.1, ... 1
    tape-ds evaluate passkey MODEL --protocol published         the prompts of LongLoRA's and TAPE's figure
    tape-ds evaluate passkey MODEL --lengths 32k 64k 128k --gpus 8

A prompt with its reply has at most ``length`` tokens, whatever the tokenizer; the key follows ``depth`` of the filler.
Replies are greedy, whatever the model's generation settings. A reply is right when its first integer is the key; that
it begins with the key's token ids (LongLoRA's rule) is counted as well.

Written to the folder of results: ``passkey.json`` (every reply), ``passkey.png``, ``passkey.csv``, ``passkey.md``.
Exit codes: 0 done; 2 a mistake.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds.arguments import Parser, add_model, add_output, below_one, length, values_of
from tape_ds.data import passkey as prompts
from tape_ds.data.passkey import FORMS, PUBLISHED_LENGTHS, PUBLISHED_TRIALS, REPLY_TOKENS
from tape_ds.errors import Problem, collecting, command, is_main_process, raise_if_any
from tape_ds.numbers import counted
from tape_ds.scoring import CHUNK

if TYPE_CHECKING:
    from tape_ds.data.passkey import PlannedQuestion
    from tape_ds.scoring.models import FoundModel
    from tape_ds.scoring.resumable import Evaluation

NAME = "passkey"
LENGTHS = (1024, 2048, 4096, 8192)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
TRIALS = 5
SETTINGS = ("protocol", "form", "depths", "trials", "new_tokens", "use_cache", "chunk")
"""Options that decide numbers, with the lengths."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check, ask, count, write, print."""
    options, problems = parse(argv)

    from tape_ds.scoring import heat_maps, models, resumable

    found_model = models.find(options, problems)
    plans = prepare(options, found_model, problems)
    deciding = values_of(options, SETTINGS)
    # in any order the same questions
    deciding["lengths"] = sorted(options.lengths)
    work = resumable.Evaluation(
        NAME,
        resumable.folder(options.output, found_model),
        model=found_model.about(),
        config=deciding,
        data={f"passkey:{options.form}": prompts.fingerprint(options.form)},
        seed=None if options.protocol == "published" else options.seed,
    )
    models.print_notes(found_model, options.lengths)
    return work.run(
        partial(ask_all, options, found_model, plans, work),
        partial(show, options, found_model, work.folder),
        overwrite=options.overwrite,
        tables=heat_maps.files(work.folder, NAME),
    )


def ask_all(
    options: argparse.Namespace,
    found_model: "FoundModel",
    plans: Sequence["PlannedQuestion"],
    work: "Evaluation",
) -> dict[str, Any]:
    """Load the model, and return the figures of its replies."""
    from tape_ds.scoring import replies
    from tape_ds.scoring.resumable import Cost

    if is_main_process():
        print(announcement(options, len(plans)), flush=True)
    model = found_model.load()
    cost = Cost(found_model.device)
    if options.use_cache and not replies.reads_in_pieces(model) and is_main_process():
        print(
            "prompts are read in one piece: for this model pieces may give other numbers",
            flush=True,
        )
    # the longest first: memory that does not suffice shows at once, and processes end together
    longest_first = sorted(plans, key=lambda plan: -plan.length)
    ask = partial(answer, options, model, found_model.tokenizer())
    answered = work.run_jobs([(plan.name, plan) for plan in longest_first], ask)
    rows = [(plan.length, plan.depth, answered[plan.name]) for plan in plans]
    tokens = sum(row["tokens"] for *_, row in rows)
    return {"form": options.form, **count(rows), "cost": cost.taken(prompt_tokens=tokens)}


def answer(
    options: argparse.Namespace, model: Any, tokenizer: Any, plan: "PlannedQuestion"
) -> dict[str, Any]:
    """Return the row of one question."""
    from tape_ds.scoring import models, questions
    from tape_ds.scoring.passkey import PASSKEYS

    asked = [plan.write()]
    reading = {"chunk": options.chunk, "use_cache": options.use_cache}
    with models.used_at(model, questions.tokens_needed(asked)):
        (row,) = questions.answer(PASSKEYS, model, tokenizer, asked, **reading)
    return row


def count(rows: Sequence[tuple[int, float | None, dict[str, Any]]]) -> dict[str, Any]:
    """Return the counts of rows, each with its length and depth: by both, and by length."""
    from tape_ds.scoring.passkey import counts

    by_cell = defaultdict(list)
    by_length = defaultdict(list)
    for nominal, depth, row in rows:
        by_cell[nominal, depth].append(row)
        by_length[nominal].append(row)
    cells = []
    for (nominal, depth), in_cell in sorted(by_cell.items()):
        # None: not every tokenizer has ids of the key alone
        same_ids = [row["same_ids"] for row in in_cell]
        correct_ids = None if None in same_ids else sum(same_ids)
        cell = {
            "length": nominal,
            "depth": depth,
            "trials": len(in_cell),
            "correct": sum(row["right"] for row in in_cell),
            "correct_ids": correct_ids,
            "mean_tokens": statistics.fmean(row["tokens"] for row in in_cell),
        }
        cells.append(cell)
    passkeys = []
    for nominal, of_length in sorted(by_length.items()):
        passkeys.append({"length": nominal, **counts(of_length), "replies": of_length})
    return {"cells": cells, "passkeys": passkeys}


def announcement(options: argparse.Namespace, total: int) -> str:
    """Return what is asked, in words."""
    where = counted(len(options.lengths), "length")
    if options.depths:
        where = f"{counted(len(options.depths), 'depth')} and {where}"
    return f"passkeys: {options.trials} at each of {where} = {total:,} prompts"


def show(
    options: argparse.Namespace, found_model: "FoundModel", folder: Path, figures: Mapping[str, Any]
) -> None:
    """Write tables and picture, and print the tables."""
    from tape_ds.scoring import heat_maps, tables

    title = f"Passkeys found by {found_model.name_or_path} ({options.form}, {options.protocol})"
    by_length = figures["passkeys"]
    written = heat_maps.write_passkeys(
        figures["cells"], folder, title=title, native_length=found_model.known_length
    )
    print(f"\n{title}\n")
    print(heat_maps.passkey_table(figures["cells"]))
    tables.print_passkeys(
        {found_model.name_or_path: by_length},
        found_model.known_length or by_length[-1]["length"],
        "its length",
    )
    print(", ".join(map(str, written)))


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[Problem]]:
    """Return the options, completed by the protocol's defaults, and what is wrong with them whatever the model."""
    parser = Parser(prog="tape-ds evaluate passkey", description=__doc__)
    add_model(parser)
    add_output(parser)
    group = parser.add_argument_group("passkeys")
    group.add_argument(
        "--protocol",
        default="grid",
        choices=("grid", "published"),
        help="grid: keys at chosen depths (default); published: LongLoRA's filler, keys and places, numpy's seeds 0 to "
        "19, at nominal lengths of which 3.75 characters a token are taken",
    )
    group.add_argument(
        "--lengths",
        type=length,
        nargs="+",
        metavar="N",
        help="tokens, such as 4096 or 4k; default: 1k 2k 4k 8k, published: 1000 2000 ... 8000",
    )
    group.add_argument(
        "--depths",
        type=float,
        nargs="+",
        metavar="D",
        help="shares of the filler before the key, 0 to 1; or one whole number above 1: that many, evenly from 0 to 1 "
        "(default: 0 0.25 0.5 0.75 1)",
    )
    group.add_argument(
        "--trials",
        type=int,
        help="prompts at each depth of each length: --trials 4 --lengths 4k 8k asks 4 x 5 depths x 2 lengths = 40 "
        "(default: 5; published: 20 at each length)",
    )
    group.add_argument(
        "--form", default="longlora", choices=tuple(FORMS), help="whose filler (default: longlora)"
    )
    group.add_argument(
        "--new_tokens", type=int, default=REPLY_TOKENS, help="of a reply (default: %(default)s)"
    )
    group.add_argument(
        "--no_use_cache",
        dest="use_cache",
        action="store_false",
        help="no key-value cache: the whole text is read for every new token",
    )
    group.add_argument(
        "--chunk",
        type=int,
        default=CHUNK,
        help="tokens of a prompt read at once (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    grid = options.protocol == "grid"
    # the parser has no defaults of these: the two protocols have different ones
    if grid:
        options.depths = options.depths or list(DEPTHS)
        options.lengths = options.lengths or list(LENGTHS)
        trials = TRIALS
    else:
        options.lengths = options.lengths or list(PUBLISHED_LENGTHS)
        trials = PUBLISHED_TRIALS
    if options.trials is None:
        options.trials = trials

    problems = below_one(options, "new_tokens", "chunk")
    if not grid and options.depths is not None:
        remedy = "leave it out, or use --protocol grid"
        problems.append(
            Problem(
                "--depths", options.depths, f"{options.protocol} prompts draw their depths", remedy
            )
        )
    elif options.depths is not None:
        depths = sorted(options.depths)
        # a number of depths becomes shares
        if len(depths) == 1 and depths[0] > 1 and depths[0].is_integer():
            depths = [number / (depths[0] - 1) for number in range(int(depths[0]))]
        if len(set(depths)) < len(depths) or not all(0 <= depth <= 1 for depth in depths):
            remedy = "give shares such as 0 0.5 1, each once, or one whole number above 1 for an even grid"
            problems.append(Problem("--depths", options.depths, "no shares from 0 to 1", remedy))
            # all else is checked with these
            depths = list(DEPTHS)
        options.depths = depths
    if not grid and options.form != "longlora":
        problems.append(
            Problem(
                "--form", options.form, f"{options.protocol} prompts use LongLoRA's", "leave it out"
            )
        )
    if len(set(options.lengths)) < len(options.lengths):
        problems.append(
            Problem("--lengths", options.lengths, "one is given twice", "give each once")
        )
    return options, problems


def prepare(
    options: argparse.Namespace, model: "FoundModel", problems: list[Problem]
) -> list["PlannedQuestion"]:
    """Return the protocol's questions."""
    from tape_ds.scoring.models import check_lengths
    from tape_ds.scoring.questions import tokens_needed

    tokenizer = model.tokenizer()
    # a reply that is shorter than its key is wrong whatever the model has found
    least = len(prompts.answer_ids(tokenizer, prompts.LARGEST_KEY) or ())
    if 1 <= options.new_tokens < least:
        wrong = f"{prompts.LARGEST_KEY} alone has {least} tokens"
        problems.append(Problem("--new_tokens", options.new_tokens, wrong, f"give {least} or more"))
    plans: list[PlannedQuestion] = []
    with collecting(problems, "--{}"):
        if options.protocol == "published":
            plans = prompts.published(
                tokenizer, options.lengths, options.trials, reply=options.new_tokens
            )
        else:
            plans = prompts.grid(
                tokenizer,
                options.lengths,
                options.depths,
                options.trials,
                seed=options.seed,
                form=options.form,
                reply=options.new_tokens,
            )
    if options.protocol != "published" or model.position_limit is None:
        problems += check_lengths("--lengths", options.lengths, model)
    else:
        # a published prompt has the tokens that its characters give
        longest = dict.fromkeys(options.lengths, 0)
        for plan in plans:
            longest[plan.length] = max(longest[plan.length], tokens_needed([plan.write()]))
        problems += check_lengths(
            "--lengths (in tokens of prompt and reply)", sorted(longest.values()), model
        )
    raise_if_any(problems)
    return plans
