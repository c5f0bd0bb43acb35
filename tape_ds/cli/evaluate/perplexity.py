"""Perplexity by length, on any texts and by each of the published conventions, and loss by position.

    tape-ds evaluate perplexity smollm2 --lengths 2k 4k 8k 16k --spans 2k       held-out files of the stdlib
    tape-ds evaluate perplexity runs/demo --data bin:pg19.bin --lengths 1k 2k 4k 8k --convention all_tokens
    tape-ds evaluate perplexity MODEL --data "jsonl:books/*.jsonl#text" --lengths 32k 64k --convention new_tokens \\
        --stride 16k --bos --min_tokens 128k --max_tokens 128k --max_documents 20
    tape-ds evaluate perplexity MODEL --data bin:proof_pile.bin --lengths 8k --gpus 8

--long_ppl adds LongPPL: the loss over the tokens that a long context predicts well and a short one does not.

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

from tape_ds.arguments import Parser, add_model, add_output, below_one, length, values_of
from tape_ds.data.sources import SPLITS, Source, parse_all
from tape_ds.errors import Problem, collecting, command, raise_if_any
from tape_ds.scoring.windows import CONVENTIONS, Scoring

if TYPE_CHECKING:
    from tape_ds.scoring.long_ppl import LongJob
    from tape_ds.scoring.models import FoundModel
    from tape_ds.scoring.resumable import Evaluation
    from tape_ds.scoring.window_jobs import Jobs, Texts, WindowJob

NAME = "perplexity"
# the published one of all_tokens
STRIDE = 256
SPLIT = "heldout"
# as published
LONG_PPL_SHORT = 4096
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

    from tape_ds.scoring import losses, models, resumable

    found_model = models.find(options, problems)
    tokenizer = found_model.tokenizer()
    problems += models.check_lengths("--lengths", options.lengths, found_model)
    if options.bos and tokenizer.bos_token_id is None:
        problems.append(
            Problem(
                "--bos",
                True,
                "the tokenizer has no BOS",
                "leave it out, or name another --tokenizer",
            )
        )
    reason = losses.unscorable(found_model.config)
    if reason is not None:
        problems.append(Problem("model", found_model.name_or_path, reason, "score another model"))
    judge = find_judge(options, found_model, problems)
    raise_if_any(problems)

    stride = STRIDE if options.stride is None else options.stride
    deciding = {"lengths": options.lengths, "stride": stride}
    if options.convention == "blocks":
        # none: blocks follow on one another
        deciding["stride"] = options.stride
    deciding |= values_of(options, SCORING)
    if options.long_ppl:
        about_judge = None if judge is None else judge.about()
        deciding["long_ppl"] = {"short": options.long_ppl_short, "judge": about_judge}
    deciding |= values_of(options, DOCUMENTS)
    work = resumable.Evaluation(
        NAME,
        resumable.folder(options.output, found_model),
        model=found_model.about(),
        config=deciding,
        data={source.spec: source.fingerprint() for source in sources},
        seed=None,
    )
    models.print_notes(found_model, options.lengths, bos=not options.bos)
    scoring = Scoring(
        convention=options.convention,
        stride=stride,
        begin=tokenizer.bos_token_id if options.bos else None,
        first_window=options.first_window,
        drop_last=options.drop_last,
        spans=options.spans,
    )
    return work.run(
        partial(score_all, options, found_model, judge, sources, scoring, work),
        partial(show, found_model),
        overwrite=options.overwrite,
    )


def score_all(
    options: argparse.Namespace,
    found_model: "FoundModel",
    judge: "FoundModel | None",
    sources: Sequence[Source],
    scoring: Scoring,
    work: "Evaluation",
) -> dict[str, Any]:
    """Read the texts, load the models, and return the figures. ``judge`` finds LongPPL's tokens; None: the model."""
    from tape_ds.scoring import long_ppl, window_jobs
    from tape_ds.scoring.resumable import Cost

    texts: dict[str, list[window_jobs.ScoredText]] = {}
    problems: list[Problem] = []
    choice = values_of(options, DOCUMENTS)
    for source in sources:
        # all sources' problems in one message, although reading one may take minutes
        with collecting(problems):
            texts[source.spec] = window_jobs.read_texts(
                source, found_model.tokenizer(), bare=options.bos, **choice
            )
    # before the model is loaded
    raise_if_any(problems)
    jobs = window_jobs.plan(texts, options.lengths, scoring)
    require_covered(jobs, texts, options.lengths, scoring, found_model)
    long_jobs = {}
    if options.long_ppl:
        long_jobs = long_ppl.jobs(texts, options.lengths, options.long_ppl_short)

    model = found_model.load()
    judging = model if judge is None else judge.load()
    cost = Cost(found_model.device)
    score_windows = partial(
        window_jobs.work, model, texts, scoring, options.batch_size, options.chunk
    )
    score_long = partial(
        long_ppl.work, model, judging, texts, options.long_ppl_short, options.chunk
    )

    def score_job(job: "WindowJob | LongJob") -> Any:
        if isinstance(job, long_ppl.LongJob):
            return score_long(job)
        return score_windows(job)

    planned: list[tuple[str, WindowJob | LongJob]] = [*jobs.items(), *long_jobs.items()]
    # the longest first: memory that does not suffice shows at once, and processes end together
    longest_first = sorted(planned, key=lambda item: -item[1].length)
    done = work.run_jobs(longest_first, score_job)
    figures = window_jobs.figures(texts, options.lengths, scoring, jobs, done)
    if options.long_ppl:
        figures["long_ppl"] = long_ppl.figures(long_jobs, done)
    tokens = sum(window.end - window.start for job in jobs.values() for _, window in job.windows)
    return {**figures, "cost": cost.taken(tokens=tokens)}


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[Problem]]:
    """Return the options, and what is wrong with the numbers, by themselves and together."""
    parser = Parser(prog="tape-ds evaluate perplexity", description=__doc__)
    add_model(parser)
    add_output(parser)
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data", nargs="+", default=["stdlib"], metavar="SPEC", help="as in recipes, or bin:FILE"
    )
    group.add_argument(
        "--split", default=SPLIT, choices=SPLITS, help="of stdlib and hub: (default: %(default)s)"
    )
    group.add_argument(
        "--min_tokens", type=length, default=SHORTEST, metavar="N", help="shorter documents out"
    )
    group.add_argument(
        "--max_tokens", type=length, metavar="N", help="documents are cut to this length"
    )
    group.add_argument(
        "--max_documents", type=int, metavar="N", help="of each source, the first long enough"
    )
    group.add_argument(
        "--join",
        type=int,
        metavar="N",
        help="take N documents one after another for one; 1000: TAPE's eval.py",
    )
    group = parser.add_argument_group("scoring")
    group.add_argument(
        "--lengths", type=length, nargs="+", required=True, metavar="N", help="4096 or 4k, ..."
    )
    group.add_argument(
        "--convention",
        default="blocks",
        choices=CONVENTIONS,
        help="all_tokens: LongLoRA's and TAPE's Table 2; new_tokens: PoSE's and Hugging Face's; blocks: disjoint "
        "(default)",
    )
    group.add_argument(
        "--stride", type=length, metavar="N", help=f"between windows (default: {STRIDE})"
    )
    group.add_argument(
        "--bos", action="store_true", help="begin every window with BOS, as PoSE does"
    )
    group.add_argument(
        "--first_window", action="store_true", help="only each document's first: PoSE's --truncate"
    )
    group.add_argument(
        "--drop_last", action="store_true", help="leave out each document's last: TAPE's eval.py"
    )
    group.add_argument(
        "--spans", type=length, metavar="N", help="loss by position, in spans of N tokens, too"
    )
    group.add_argument(
        "--long_ppl",
        action="store_true",
        help="also the loss over the tokens that need a long context (LongPPL)",
    )
    group.add_argument(
        "--long_ppl_short",
        type=length,
        metavar="N",
        help="tokens of the short context, every 1,024 a new one (default: 4k)",
    )
    group.add_argument(
        "--long_ppl_judge",
        metavar="MODEL",
        help="finds those tokens; of the same tokenizer (default: the model itself)",
    )
    group.add_argument(
        "--batch_size",
        type=int,
        default=1,
        metavar="N",
        help="windows at once (default: %(default)s)",
    )
    group.add_argument(
        "--chunk", type=int, default=1024, metavar="N", help="positions whose logits exist at once"
    )
    options = parser.parse_args(argv)
    options.lengths = sorted(set(options.lengths))

    problems = below_one(options, "max_documents", "join", "batch_size", "chunk")
    for name in ("lengths", "spans", "min_tokens", "max_tokens"):
        values = getattr(options, name)
        if not isinstance(values, list):
            values = [values]
        for value in values:
            if value is not None and value < SHORTEST:
                wrong = "a token and its target are needed"
                problems.append(Problem(f"--{name}", value, wrong, f"{SHORTEST} or more"))
    if options.max_tokens is not None and options.max_tokens < options.min_tokens:
        wrong = f"less than --min_tokens {options.min_tokens}"
        problems.append(
            Problem("--max_tokens", options.max_tokens, wrong, "the larger of the two, or more")
        )
    for name in ("long_ppl_short", "long_ppl_judge"):
        value = getattr(options, name)
        if value is not None and not options.long_ppl:
            problems.append(
                Problem(f"--{name}", value, "--long_ppl is not given", "add --long_ppl")
            )
    options.long_ppl_short = options.long_ppl_short or LONG_PPL_SHORT
    if options.long_ppl and not any(tokens > options.long_ppl_short for tokens in options.lengths):
        wrong = f"no length is longer than the short context, {options.long_ppl_short:,} tokens"
        problems.append(
            Problem(
                "--long_ppl", True, wrong, "give longer --lengths, or a shorter --long_ppl_short"
            )
        )
    if options.long_ppl and options.bos:
        wrong = "LongPPL reads windows as they are in the text"
        problems.append(Problem("--bos", True, wrong, "leave it out, or score without --long_ppl"))
    for spec in sorted(set(options.data)):
        if options.data.count(spec) > 1:
            problems.append(Problem("--data", spec, "named twice", "name it once"))

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


def find_judge(
    options: argparse.Namespace, model: "FoundModel", problems: list[Problem]
) -> "FoundModel | None":
    """Return the model that finds LongPPL's tokens, if it is another one."""
    from tape_ds.data import tokenized
    from tape_ds.scoring import losses, models

    if options.long_ppl_judge is None:
        return None
    # as it is: the other options of a model are this command's model's
    changed = {
        "model": options.long_ppl_judge,
        "tokenizer": None,
        "position_updates": "on",
        "rope_scaling": "own",
    }
    asked = argparse.Namespace(**vars(options) | changed)
    judges: list[FoundModel] = []
    with collecting(problems):
        judges.append(models.find(asked))
    if not judges:
        return None
    (judge,) = judges
    # it names tokens by their place in the text, which another tokenizer divides otherwise
    fingerprint = tokenized.tokenizer_fingerprint(model.tokenizer())
    if tokenized.tokenizer_fingerprint(judge.tokenizer()) != fingerprint:
        wrong = f"its tokenizer is not that of {model.name_or_path}"
        problems.append(
            Problem(
                "--long_ppl_judge", options.long_ppl_judge, wrong, "name a model with the same one"
            )
        )
    reason = losses.unscorable(judge.config)
    if reason is not None:
        problems.append(
            Problem("--long_ppl_judge", options.long_ppl_judge, reason, "name another model")
        )
    problems += models.check_lengths("--lengths", options.lengths, judge)
    return judge


def require_covered(
    jobs: "Jobs", texts: "Texts", lengths: Sequence[int], scoring: Scoring, model: "FoundModel"
) -> None:
    """Check that each source has a full window of each length, and the model an embedding for each token."""
    covered = set()
    for job in jobs.values():
        # the loss by position comes in addition to these
        if job.spans:
            continue
        full = scoring.room(job.length)
        if full in {window.end - window.start for _, window in job.windows}:
            covered.add((job.source, job.length))
    # of a model with several parts, the text's
    vocabulary = model.config.get_text_config().vocab_size
    problems = []
    for source, parts in texts.items():
        longest = max(len(text.ids) for text in parts)
        for tokens in lengths:
            if (source, tokens) not in covered:
                wrong = f"none of the {len(parts)} texts of {source} fills a window; the longest has {longest:,} tokens"
                problems.append(
                    Problem("--lengths", tokens, wrong, "leave it out, or name longer texts")
                )
        highest = max(int(text.ids.max(initial=0)) for text in parts)
        if highest >= vocabulary:
            wrong = f"it has the token {highest}, the model's vocabulary ends at {vocabulary - 1}"
            problems.append(
                Problem(
                    "--data", source, wrong, "name the --tokenizer that the model was trained with"
                )
            )
    raise_if_any(problems)


def words_of(entry: Mapping[str, Any]) -> str:
    """Return the scores of one text at one length, and what was left out, as a line."""
    loss = f"{entry['nll']:.4f}"
    if entry["standard_error"] is not None:
        loss += f" +- {entry['standard_error']:.4f}"
    words = [
        f"{entry['perplexity']:.4f}",
        f"{loss} nats per token",
        f"{entry['targets']:,} targets in {entry['windows']:,} windows of {entry['documents']:,} documents",
    ]
    left_out = entry["left_out"]
    for documents, wrong in (
        (entry["shorter"], "shorter than a window"),
        (left_out, "too short, left out"),
    ):
        if documents["documents"]:
            # a stored result has the names nan, inf as numbers
            names = ", ".join(map(str, documents["names"]))
            if documents["documents"] > len(documents["names"]):
                names += ", ..."
            words.append(f"{documents['documents']:,} documents {wrong}: {names}")
    if left_out["tokens"]:
        words.append(f"{left_out['tokens']:,} tokens in no window")
    return "; ".join(words)


def show(model: "FoundModel", figures: Mapping[str, Any]) -> None:
    """Print the tables, and what was left out."""
    from tape_ds.scoring import tables
    from tape_ds.scoring.span_losses import SpanLosses

    for source in figures["documents"]:
        entries = [entry for entry in figures["perplexity"] if entry["source"] == source]
        print(f"\n{NAME} of {model.name_or_path} on {source} ({entries[0]['convention']})")
        tables.print_rows({f"{entry['length']:,}": words_of(entry) for entry in entries})
    if figures.get("long_ppl"):
        print("\nLongPPL")
        rows = {}
        for entry in figures["long_ppl"]:
            value = "no key token"
            if entry["long_ppl"] is not None:
                value = f"{entry['long_ppl']:.4f}"
            share = f"{entry['key_tokens']:,} of {entry['targets']:,} tokens"
            whole = f"{entry['perplexity']:.4f} over all of them"
            rows[f"{entry['source']}, {entry['length']:,}"] = f"{value}; {share}; {whole}"
        tables.print_rows(rows)
    for source, documents in figures["loss_by_position"].items():
        print(f"\n{source}")
        losses = {name: SpanLosses.from_dict(values) for name, values in documents.items()}
        longest = max(entry["length"] for entry in figures["perplexity"])
        tables.print_loss_by_position({model.name_or_path: losses}, model.known_length or longest)
