"""Make a test set of long texts: one file of token ids that ``tape-ds evaluate perplexity`` reads as ``bin:FILE``.

    tape-ds prepare-test-set pg19 --tokenizer meta-llama/Llama-2-7b-hf --output data/pg19.bin
    tape-ds prepare-test-set proof_pile --tokenizer smollm2 --output data/proof_pile.bin
    tape-ds prepare-test-set github --tokenizer runs/c4 --output data/github.bin \\
        --data "jsonl:/data/pile/test.jsonl.zst#text?meta.pile_set_name=Github"
    tape-ds prepare-test-set own --tokenizer smollm2 --output data/own.bin --data "text:books/*.txt"

    pg19        the test books of PG-19
    proof_pile  the first 128 documents of proof-pile's test set that have 32,768 tokens or more
    gov_report  the reports of the test set of SCROLLS' GovReport
    github      the part of the Pile's test set that is code from GitHub
    own         what --data names

Documents follow one another without a separator, BOS or EOS (``--keep_special`` leaves the tokenizer's), as in
LongLoRA's files; which 128 documents of proof-pile those have is not known. Data come from the Hugging Face hub, or
from ``--data``. A record is written as well (``FILE.bin.json``): width of an id, tokenizer, sources, counts, checksum.
Exit codes: 0 done; 2 a mistake.
"""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tape_ds.arguments import Parser, below_one, values_of
from tape_ds.data.prompting import around
from tape_ds.data.sources import Source, parse_all, token_file
from tape_ds.errors import Problem, check_folder, collecting, command, raise_if_any

# Defaults of the options
TEST_SETS: dict[str, dict[str, Any]] = {
    "pg19": {"data": ["hub:emozilla/pg19-test@c5e39bf32e33f9111323aa68d7d9000d22722035::test"]},
    "proof_pile": {
        "data": [
            "jsonl:hf://datasets/hoskinson-center/proof-pile@490b980249446f2f3bd2df3a8cf085d0f2de240a/"
            "test/proofpile_test.jsonl.gz#text"
        ],
        "min_tokens": 32_768,
        "max_documents": 128,
    },
    "gov_report": {
        "data": [
            "jsonl:zip://gov_report/test.jsonl::hf://datasets/tau/scrolls/gov_report.zip#input"
        ]
    },
    "github": {
        "data": [
            "jsonl:hf://datasets/monology/pile-uncopyrighted@3be90335b66f24456a5d6659d9c8d208c0357119/"
            "test.jsonl.zst#text?meta.pile_set_name=Github"
        ]
    },
    "own": {},
}


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds prepare-test-set", description=__doc__)
    parser.add_argument("name", choices=TEST_SETS)
    parser.add_argument(
        "--tokenizer", required=True, help="a folder, a hub id, a .gguf file or smollm2"
    )
    parser.add_argument("--output", required=True, metavar="FILE.bin")
    parser.add_argument("--data", nargs="+", metavar="SPEC", help="as in recipes; default: the hub")
    parser.add_argument(
        "--min_tokens", type=int, metavar="N", help="shorter documents are left out"
    )
    parser.add_argument(
        "--max_tokens", type=int, metavar="N", help="documents are cut to this length"
    )
    parser.add_argument(
        "--max_documents", type=int, metavar="N", help="the first that are long enough"
    )
    parser.add_argument(
        "--keep_special", action="store_true", help="leave the tokenizer's BOS and EOS"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file")
    options = parser.parse_args(argv)
    # the command line wins over the known name of the test set
    for name, value in ({"data": [], "min_tokens": 1} | TEST_SETS[options.name]).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    path = Path(options.output)
    problems = below_one(options, "min_tokens", "max_tokens", "max_documents")
    if path.suffix != ".bin":
        problems.append(
            Problem(
                "--output",
                options.output,
                "the file's name does not end in .bin",
                "call it NAME.bin",
            )
        )
    problems += check_folder("--output", path.parent)
    if path.is_dir():
        problems.append(Problem("--output", options.output, "it is a folder", "name another file"))
    elif not options.overwrite and any(map(os.path.lexists, (path, token_file.record_path(path)))):
        problems.append(
            Problem(
                "--output",
                options.output,
                "exists",
                "name another file, or replace it: --overwrite",
            )
        )
    sources: list[Source] = []
    with collecting(problems):
        sources = parse_all(list(options.data), "--data")
    for source in sources:
        if source.tokenised:
            problems.append(
                source.problem("token ids already", "name the text they were made from")
            )
    raise_if_any(problems)

    # torch, only once the options are right
    from tape_ds.data import tokenized, tokenizer

    tokens = tokenizer.load_tokenizer(options.tokenizer)
    _, end = around(tokens)

    def long_enough() -> Iterator[np.ndarray]:
        """Yield token ids int32 [n] of each document."""
        for source in sources:
            for _, ids in tokenized.encode(source.documents("heldout"), tokens):
                if not options.keep_special:
                    ids = tokenized.without_ends(ids[: len(ids) - end], tokens)
                if len(ids) >= options.min_tokens:
                    yield ids[: options.max_tokens]

    choice = values_of(options, ("min_tokens", "max_tokens", "max_documents", "keep_special"))
    # documents one after another, so that a test set of any size fits in memory
    written = token_file.write(
        path,
        islice(long_enough(), options.max_documents),
        tokenizer=tokenized.tokenizer_fingerprint(tokens),
        vocabulary=len(tokens),
        sources={source.spec: source.fingerprint() for source in sources},
        choice=choice,
    )
    print(
        f"{path}: {written.documents:,} documents, {written.tokens:,} tokens as {written.width}; name it bin:{path}"
    )
    return 0
