"""Tokenise a corpus ahead, in parallel, into a folder that a recipe names as ``arrow:DIR``.

    python tools/prepare_data.py --data "jsonl:/c4/en/*.json.gz#text" --tokenizer meta-llama/Llama-2-7b-hf \\
        --output /data/c4-llama2 --workers 32
    python tools/prepare_data.py --check /data/c4-llama2 --workers 8

The first resumes where it was when it is started again, after whatever stopped it. The second reads every byte of a
finished folder and names each shard that is damaged or missing; sizes alone are checked before every training
run. The same data, tokenizer, ``--parts`` and ``--shard_tokens`` give the same files, whatever ``--workers`` is.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, command, raise_if_any

if TYPE_CHECKING:
    from tape_ds.data.prepared import ShardEntry


@command
def main(argv: list[str] | None = None) -> int:
    """Prepare, or check what is prepared."""
    from tape_ds.data import prepared
    from tape_ds.data.bad_rows import BadRows
    from tape_ds.data.sources import SPLITS

    parser = Parser(description=__doc__)
    parser.add_argument("--data", nargs="+", metavar="SPEC", help="as in the recipes")
    parser.add_argument("--tokenizer", metavar="PATH_OR_NAME", help="a folder, a hub id, a .gguf file or smollm2")
    parser.add_argument("--output", metavar="DIR")
    parser.add_argument("--check", metavar="DIR", help="read a finished folder whole and name what is damaged")
    parser.add_argument("--split", default="train", choices=SPLITS, help="%(default)s")
    parser.add_argument("--shard_tokens", type=int, default=prepared.SHARD_TOKENS, help="tokens a shard; %(default)s")
    parser.add_argument(
        "--parts", type=int, default=prepared.PARTS, help="tasks at most, more than workers; %(default)s"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes; %(default)s, one a core")
    parser.add_argument(
        "--skip_bad_rows",
        type=int,
        default=0,
        help="rows that may be left out as not readable; %(default)s",
    )
    options = parser.parse_args(argv)
    check_options(options)
    if options.check is not None:
        raise_if_any(prepared.verify(options.check, threads=options.workers))
        found = prepared.read_manifest(Path(options.check))
        print(f"{options.check}: {len(found.shards)} shards, {found.tokens:,} tokens, all of them whole")
        return 0
    from tape_ds.data.tokenizer import load

    bad_rows = BadRows(options.skip_bad_rows)
    result = prepared.prepare(
        options.data,
        load(options.tokenizer),
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
    return 0


def report(entry: "ShardEntry") -> None:
    """A line for a new shard."""
    # The end of the line goes with it in one write: workers share an output that may have no buffer.
    print(f"{entry.file}: {entry.documents:,} documents, {entry.tokens:,} tokens\n", end="", flush=True)


def check_options(options: argparse.Namespace) -> None:
    """Whether the options go together.

    Raises:
        UserError: naming each that is missing or too much.
    """
    needed = ("data", "tokenizer", "output")
    if options.check is None:
        missing = [name for name in needed if getattr(options, name) is None]
        raise_if_any([Problem(name, None, "missing", "see --help") for name in missing])
    elif given := [name for name in needed if getattr(options, name) is not None]:
        raise UserError(Problem("check", options.check, f"does not go with {given[0]}", "do one after the other"))
    elif options.workers < 1:
        raise UserError(Problem("workers", options.workers, "not a positive number", "1 or more"))


if __name__ == "__main__":
    sys.exit(main())
