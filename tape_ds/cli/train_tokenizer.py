"""Train a sentencepiece tokenizer with Llama's settings on text.

    tape-ds train-tokenizer --data stdlib --vocab_size 4096 --output my-tokenizer
    tape-ds train-tokenizer --data "jsonl:/data/*.jsonl#text" "text:/books/**/*.txt" --vocab_size 32000 \\
        --output my-tokenizer

The folder loads with ``AutoTokenizer.from_pretrained("my-tokenizer")``. The same documents and settings give the same
files. Data specs are those of the recipes.
"""

from tape_ds.arguments import Parser, below_one
from tape_ds.errors import command, raise_if_any


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds train-tokenizer", description=__doc__)
    parser.add_argument("--data", nargs="+", required=True, metavar="SPEC")
    parser.add_argument("--vocab_size", type=int, required=True)
    parser.add_argument("--output", required=True, metavar="DIR")
    parser.add_argument(
        "--max_characters", type=int, help="text read at most; default: as runs train theirs"
    )
    options = parser.parse_args(argv)
    raise_if_any(below_one(options, "vocab_size", "max_characters"))
    # seconds: not for --help
    from tape_ds.data import tokenizer

    most = options.max_characters or tokenizer.MAX_CHARACTERS
    with parser.as_typed():
        trained = tokenizer.train(
            options.data, options.vocab_size, options.output, max_characters=most, field="data"
        )
    print(f"{options.output}: {len(trained):,} tokens, trained on {', '.join(options.data)}")
    return 0
