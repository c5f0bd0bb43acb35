"""Tokenise a corpus in parallel, into a folder that a recipe names as ``arrow:DIR``.

    tape-ds prepare-data --data "jsonl:/c4/en/*.json.gz#text" --tokenizer meta-llama/Llama-2-7b-hf \\
        --output /data/c4-llama2 --workers 32
    tape-ds prepare-data --check /data/c4-llama2 --workers 8

The first, when it was interrupted and is started again, resumes. The second reads every byte of a finished folder and
names each shard that is damaged or missing; before a training run only sizes are checked. The same data, tokenizer,
``--parts`` and ``--shard_tokens`` give the same files, whatever ``--workers`` is.
"""

import argparse
import os
from pathlib import Path

from tape_ds.arguments import Parser, below_one, values_of
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.sources import SPLITS
from tape_ds.data.sources.arrow import PARTS, SHARD_TOKENS, ShardEntry, read_manifest
from tape_ds.errors import Problem, command, raise_if_any


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds prepare-data", description=__doc__)
    parser.add_argument("--data", nargs="+", metavar="SPEC", help="as in the recipes")
    parser.add_argument(
        "--tokenizer", metavar="PATH_OR_NAME", help="a folder, a hub id, a .gguf file or smollm2"
    )
    parser.add_argument("--output", metavar="DIR")
    parser.add_argument(
        "--check", metavar="DIR", help="read a finished folder whole and name what is damaged"
    )
    parser.add_argument("--split", default="train", choices=SPLITS, help="%(default)s")
    parser.add_argument(
        "--shard_tokens", type=int, default=SHARD_TOKENS, help="tokens a shard; %(default)s"
    )
    parser.add_argument(
        "--parts", type=int, default=PARTS, help="tasks at most, more than workers; %(default)s"
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="processes; %(default)s, one a core"
    )
    parser.add_argument(
        "--skip_bad_rows", type=int, default=0, help="unreadable rows to tolerate; %(default)s"
    )
    options = parser.parse_args(argv)
    # argparse has no options that are required unless another is given
    problems = []
    for name, value in values_of(options, ("data", "tokenizer", "output")).items():
        if options.check is None and value is None:
            problems.append(Problem(f"--{name}", None, "missing", "see --help"))
        elif options.check is not None and value is not None:
            problems.append(Problem(f"--{name}", value, "does not go with --check", "leave it out"))
    if options.check is not None:
        problems += below_one(options, "workers")
    raise_if_any(problems)

    with parser.as_typed():
        if options.check is not None:
            verify(options)
        else:
            prepare(options)
    return 0


def verify(options: argparse.Namespace) -> None:
    # seconds: not for --help
    from tape_ds.data import prepared

    raise_if_any(prepared.verify(options.check, threads=options.workers))
    manifest = read_manifest(Path(options.check))
    print(
        f"{options.check}: {len(manifest.shards)} shards, {manifest.tokens:,} tokens, all of them whole"
    )


def prepare(options: argparse.Namespace) -> None:
    from tape_ds.data import prepared, tokenizer

    bad_rows = BadRows(options.skip_bad_rows)
    result = prepared.prepare(
        options.data,
        tokenizer.load_tokenizer(options.tokenizer),
        options.output,
        split=options.split,
        shard_tokens=options.shard_tokens,
        parts=options.parts,
        processes=options.workers,
        bad_rows=bad_rows,
        report=report,
    )
    print(
        f"{options.output}: {len(result.shards)} shards, {result.documents:,} documents, {result.tokens:,} tokens; "
        f"name it arrow:{options.output}"
    )
    if bad_rows.problems:
        print(f"left out: {bad_rows}")


def report(entry: ShardEntry) -> None:
    # with its newline in one write: workers share an output that may have no buffer
    print(
        f"{entry.file}: {entry.documents:,} documents, {entry.tokens:,} tokens\n",
        end="",
        flush=True,
    )
