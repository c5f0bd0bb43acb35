"""Perplexity by length, on any texts and by each of the published conventions, and loss by position.

    tape-ds evaluate perplexity smollm2 --lengths 2k 4k 8k 16k --spans 2k       held-out files of the stdlib
    tape-ds evaluate perplexity runs/demo --data bin:pg19.bin --lengths 1k 2k 4k 8k --convention all_tokens
    tape-ds evaluate perplexity MODEL --data "jsonl:books/*.jsonl#text" --lengths 32k 64k --convention new_tokens \\
        --stride 16k --bos --min_tokens 128k --max_tokens 128k --max_documents 20
    tape-ds evaluate perplexity MODEL --data bin:proof_pile.bin --lengths 8k --num_gpus 8

Three conventions, whose numbers do not compare: all_tokens scores every token of windows that overlap (LongLoRA, and
Table 2 of TAPE, --stride 256), new_tokens scores each token once with what its window has before it (PoSE, YaRN,
Hugging Face), blocks scores windows that do not overlap. Tokens that no window covers are counted, stored and shown.

``tape-ds prepare-test-set`` makes test sets as one file of token ids. Written to the folder of results:
``perplexity.json``. Exit codes: 0 done; 2 a mistake.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tape_ds.arguments import Parser, add_model, add_output, below_one, length
from tape_ds.data.sources import SPLITS, Source, parse_all
from tape_ds.errors import Problem, collecting, command, raise_if_any
from tape_ds.scoring.windows import CONVENTIONS, Scoring

if TYPE_CHECKING:
    from tape_ds.scoring.models import FoundModel
    from tape_ds.scoring.window_jobs import Jobs, Texts

NAME = "perplexity"
STRIDE = 256  # the published one of all_tokens
SPLIT = "heldout"
SHORTEST = 2
"""Tokens of the shortest window and document: one to start from and one to predict."""
SCORING = ("convention", "bos", "first_window", "drop_last", "spans")
DOCUMENTS = ("split", "min_tokens", "max_tokens", "max_documents", "join")
"""Options that choose which documents are scored. All options but --batch_size and --chunk decide numbers."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check, read, score, write, print."""
    options, problems = parse(argv)
    sources: list[Source] = []
    with collecting(problems):
        sources = parse_all(list(dict.fromkeys(options.data)), "--data")

    from tape_ds.scoring import losses, models, resumable, window_jobs
    from tape_ds.scoring.resumable import Cost

    found = models.find(options, problems)
    tokenizer = found.tokenizer()
    problems += models.check_lengths("--lengths", options.lengths, found)
    if options.bos and tokenizer.bos_token_id is None:
        problems.append(Problem("--bos", True, "the tokenizer has no BOS", "leave it out, or name another --tokenizer"))
    if (reason := losses.unscorable(found.config)) is not None:
        problems.append(Problem("model", found.name_or_path, reason, "score another model"))
    raise_if_any(problems)

    choice = {name: vars(options)[name] for name in DOCUMENTS}
    stride = STRIDE if options.stride is None and options.convention != "blocks" else options.stride
    deciding = {name: vars(options)[name] for name in SCORING}
    work = resumable.Evaluation(
        NAME,
        resumable.folder(options.output, found),
        model=found.about(),
        config={"lengths": options.lengths, "stride": stride, **deciding, **choice},
        data={source.spec: source.fingerprint() for source in sources},
        seed=None,
    )
    models.print_notes(found, options.lengths, bos=not options.bos)
    scoring = Scoring(
        convention=options.convention,
        stride=STRIDE if options.stride is None else options.stride,
        begin=tokenizer.bos_token_id if options.bos else None,
        first_window=options.first_window,
        drop_last=options.drop_last,
        spans=options.spans,
    )

    def score() -> dict[str, Any]:
        parts: dict[str, list[window_jobs.ScoredText]] = {}
        problems: list[Problem] = []
        for source in sources:
            with collecting(problems):
                parts[source.spec] = window_jobs.read_texts(source, tokenizer, bare=options.bos, **choice)
        raise_if_any(problems)  # before the model is loaded
        jobs = window_jobs.plan(parts, options.lengths, scoring)
        require_covered(jobs, parts, options.lengths, scoring, found)
        model = found.load()
        cost = Cost(found.device)
        score_job = partial(window_jobs.work, model, parts, scoring, options.batch_size, options.chunk)
        done = work.run_jobs(list(jobs.items()), score_job)
        figures = window_jobs.figures(parts, options.lengths, scoring, jobs, done)
        tokens = sum(window.end - window.start for job in jobs.values() for _, window in job.windows)
        return {**figures, "cost": cost.taken(tokens=tokens)}

    return work.run(score, lambda figures: show(figures, found), overwrite=options.overwrite)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[Problem]]:
    """Return the options, and what is wrong with the numbers, by themselves and together."""
    parser = Parser(prog="tape-ds evaluate perplexity", description=__doc__)
    add_model(parser)
    add_output(parser)
    group = parser.add_argument_group("data")
    group.add_argument("--data", nargs="+", default=["stdlib"], metavar="SPEC", help="as in recipes, or bin:FILE")
    group.add_argument("--split", default=SPLIT, choices=SPLITS, help="of stdlib and hub: (default: %(default)s)")
    group.add_argument("--min_tokens", type=length, default=SHORTEST, metavar="N", help="shorter documents out")
    group.add_argument("--max_tokens", type=length, metavar="N", help="documents are cut to this length")
    group.add_argument("--max_documents", type=int, metavar="N", help="of each source, the first long enough")
    group.add_argument(
        "--join", type=int, metavar="N", help="take N documents one after another for one; 1000: TAPE's eval.py"
    )
    group = parser.add_argument_group("scoring")
    group.add_argument("--lengths", type=length, nargs="+", required=True, metavar="N", help="4096 or 4k, ...")
    group.add_argument(
        "--convention",
        default="blocks",
        choices=CONVENTIONS,
        help="all_tokens: LongLoRA's and TAPE's Table 2; new_tokens: PoSE's and Hugging Face's; blocks: disjoint "
        "(default)",
    )
    group.add_argument("--stride", type=length, metavar="N", help=f"between windows (default: {STRIDE})")
    group.add_argument("--bos", action="store_true", help="begin every window with BOS, as PoSE does")
    group.add_argument("--first_window", action="store_true", help="only each document's first: PoSE's --truncate")
    group.add_argument("--drop_last", action="store_true", help="leave out each document's last: TAPE's eval.py")
    group.add_argument("--spans", type=length, metavar="N", help="loss by position, in spans of N tokens, too")
    group.add_argument("--batch_size", type=int, default=1, metavar="N", help="windows at once (default: %(default)s)")
    group.add_argument("--chunk", type=int, default=1024, metavar="N", help="positions whose logits exist at once")
    options = parser.parse_args(argv)
    options.lengths = sorted(set(options.lengths))

    problems = below_one(options, "max_documents", "join", "batch_size", "chunk")
    for name in ("lengths", "spans", "min_tokens", "max_tokens"):
        values = getattr(options, name)
        for value in values if isinstance(values, list) else [values]:
            if value is not None and value < SHORTEST:
                wrong = "a token and its target are needed"
                problems.append(Problem(f"--{name}", value, wrong, f"{SHORTEST} or more"))
    if options.max_tokens is not None and options.max_tokens < options.min_tokens:
        wrong = f"less than --min_tokens {options.min_tokens}"
        problems.append(Problem("--max_tokens", options.max_tokens, wrong, "the larger of the two, or more"))
    twice = sorted({spec for spec in options.data if options.data.count(spec) > 1})
    problems += [Problem("--data", spec, "named twice", "name it once") for spec in twice]

    if options.convention == "blocks":
        if options.stride is not None:
            wrong = "blocks follow on one another, they have no stride"
            remedy = "leave it out, or name --convention all_tokens or new_tokens"
            problems.append(Problem("--stride", options.stride, wrong, remedy))
        return options, problems
    room = min(options.lengths) - options.bos
    stride = STRIDE if options.stride is None else options.stride
    if stride > room:
        wrong = f"a window of {min(options.lengths)} tokens moves by {room} at most, or tokens are left out"
        problems.append(Problem("--stride", stride, wrong, f"{room} or less, or longer --lengths"))
    return options, problems


def require_covered(
    jobs: "Jobs", texts: "Texts", lengths: Sequence[int], scoring: Scoring, model: "FoundModel"
) -> None:
    """Check that each source has a full window of each length, and the model an embedding for each token."""
    covered = set()
    for job in jobs.values():
        if not job.spans and any(window.end - window.start == scoring.room(job.length) for _, window in job.windows):
            covered.add((job.source, job.length))
    vocabulary = model.config.get_text_config().vocab_size
    problems = []
    for source, parts in texts.items():
        longest = max(len(text.ids) for text in parts)
        for tokens in lengths:
            if (source, tokens) not in covered:
                wrong = f"none of the {len(parts)} texts of {source} fills a window; the longest has {longest:,} tokens"
                problems.append(Problem("--lengths", tokens, wrong, "leave it out, or name longer texts"))
        highest = max(int(text.ids.max(initial=0)) for text in parts)
        if highest >= vocabulary:
            wrong = f"it has the token {highest}, the model's vocabulary ends at {vocabulary - 1}"
            problems.append(Problem("--data", source, wrong, "name the --tokenizer that the model was trained with"))
    raise_if_any(problems)


def show(figures: Mapping[str, Any], model: "FoundModel") -> None:
    """Print the tables, and what was left out."""
    from tape_ds.scoring.span_losses import SpanLosses
    from tape_ds.training import tables

    for source in figures["documents"]:
        entries = [entry for entry in figures["perplexity"] if entry["source"] == source]
        print(f"\n{NAME} of {model.name_or_path} on {source} ({entries[0]['convention']})")
        rows = {}
        for entry in entries:
            error, out = entry["standard_error"], entry["left_out"]
            spread = "" if error is None else f" +- {error:.4f}"
            words = [f"{entry['perplexity']:.4f}", f"{entry['nll']:.4f}{spread} nats per token"]
            counts = f"{entry['targets']:,} targets in {entry['windows']:,} windows of {entry['documents']:,} documents"
            words.append(counts)
            for documents, wrong in ((entry["shorter"], "shorter than a window"), (out, "too short, left out")):
                if documents["documents"]:
                    more = ", ..." if documents["documents"] > len(documents["names"]) else ""
                    names = ", ".join(map(str, documents["names"]))  # a stored result has the names nan, inf as numbers
                    words.append(f"{documents['documents']:,} documents {wrong}: {names}{more}")
            if out["tokens"]:
                words.append(f"{out['tokens']:,} tokens in no window")
            rows[f"{entry['length']:,}"] = "; ".join(words)
        tables.print_rows(rows)
    for source, documents in figures["loss_by_position"].items():
        print(f"\n{source}")
        losses = {name: SpanLosses.from_dict(values) for name, values in documents.items()}
        longest = max(entry["length"] for entry in figures["perplexity"])
        tables.print_loss_by_position({model.name_or_path: losses}, model.known_length or longest)
