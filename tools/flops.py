"""Count parameters, multiply-adds and FLOPs of a model with any positional encoding.

    python tools/flops.py                                  every encoding on the paper's 155M model, 1,024 tokens
    python tools/flops.py --model FOLDER --length 8192     a model of your own
    python tools/flops.py --position_encoding tape --position_options '{"rank": 24}'
    python tools/flops.py --table3                         the TAPE paper's Table 3 beside our count
    python tools/flops.py --table3 --output runs/table3    and table3.json, .md, .csv there

MACs come in two conventions: ``full`` counts the whole score matrix, as the paper does, ``causal`` the half that a
causal kernel computes. FLOPs are 2 x MACs. "M" is 2^20 parameters, as in the paper. Nothing is loaded or run.
Exit codes: 0 done; 2 something to mend.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import results, storage
from tape_ds.arguments import Parser, below_one
from tape_ds.errors import Problem, UserError, check_folder, command, raise_if_any
from tape_ds.markdown_table import markdown_table
from tape_ds.model import positions

if TYPE_CHECKING:
    from tape_ds.model.configuration import TapeConfig

PAPER = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 3_072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 1_024,
    "rms_norm_eps": 1e-5,
}
"""The model that the paper pretrains on C4."""
PAPER_RANK = 48
CONVENTIONS = (
    'FLOPs are 2 x MACs; "causal" counts the half of the score matrix that a causal kernel computes, the other columns '
    "the whole. M is 2^20. The paper's FLOPs also hold small operations that its MACs leave out. The published code "
    "evaluates the gate of TAPE's position feed-forward twice and attends to equal halves of cosines and sines."
)
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 1.0, "original_max_position_embeddings": 1_024}
PLACEHOLDERS: dict[str, dict[str, Any]] = {
    "yarn": {"rope_parameters": YARN},
    "bipe_rope": {"position_options": {"separators": [0, 1]}},
    "bipe_alibi": {"position_options": {"separators": [0, 1]}},
}
"""What some encodings cannot be built without; none of it changes a count."""
TOKENS = 1_024
"""Of Table 3: one forward, batch 1."""


@command
def main(argv: list[str] | None = None) -> int:
    """Parse, check, count, store, print."""
    given = sys.argv[1:] if argv is None else argv
    parser = Parser(description=__doc__)
    parser.add_argument("--model", help="folder or hub id of a Llama-shaped or TAPE model; default: the paper's 155M")
    parser.add_argument("--length", type=int, help="tokens of a row; default: the model's window")
    parser.add_argument("--position_encoding", nargs="*", help="default: all of them, or the model's own")
    parser.add_argument("--position_options", type=json.loads, help="options of the encoding, as JSON")
    parser.add_argument("--table3", action="store_true", help="the TAPE paper's Table 3")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", help="folder of table3.json, or flops.json, with its table as .md and .csv")
    options = parser.parse_args(given)
    check(options)
    configs = [] if options.table3 else configurations(options)
    rows = table_3() if options.table3 else [count(config, options.length) for config in configs]
    header = list(rows[0])
    cells = [[_shown(row[name]) for name in header] for row in rows]
    if options.output is not None:
        begun = results.collect(
            command=[Path(__file__).name, *given],
            config={"length": TOKENS, **PAPER} if options.table3 else vars(options),
        )
        whole, file = begun.finish({"rows": rows}), Path(options.output) / ("table3" if options.table3 else "flops")
        results.save(whole, file.with_suffix(".json"))
        asked = shlex.join(["python", "tools/flops.py", *whole.command[1:]])
        text = f"{markdown_table(header, cells)}\n\n{CONVENTIONS}\n\nCommand: `{asked}`. Nothing was run.\n"
        storage.write_text(file.with_suffix(".md"), text)
        storage.write_text(file.with_suffix(".csv"), storage.as_csv(header, (list(row.values()) for row in rows)))
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        for line in [header, *cells]:
            print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    return 0


def check(options: argparse.Namespace) -> None:
    """Report everything wrong with the command line.

    Raises:
        UserError: unknown encodings, options that are no mapping or fit none, an impossible length, a table that is
            not of the model that was named, a folder that cannot be one.
    """
    problems = []
    names = options.position_encoding or []
    given = options.position_options
    if given is not None and not isinstance(given, dict):
        problems.append(Problem("position_options", given, "not a mapping", 'give JSON such as {"rank": 24}'))
        given = None
    if given and len(names) != 1:
        wrong = "they belong to one encoding"
        problems.append(Problem("position_options", given, wrong, "name it: --position_encoding NAME"))
    for name in names:
        problems += positions.check_options(name, (given or {}) if len(names) == 1 else {})
    problems += below_one(options, "length")
    if options.table3:
        chosen = ("model", "length", "position_encoding", "position_options")
        wrong = "Table 3 is of one model, one length and four encodings"
        problems += [
            Problem(name, getattr(options, name), wrong, "leave it out, or leave out --table3")
            for name in chosen
            if getattr(options, name) is not None
        ]
    raise_if_any(problems + check_folder("output", options.output or "."))


def configurations(options: argparse.Namespace) -> list[TapeConfig]:
    """One configuration for each encoding asked for; where none is, for each that the model can have.

    Raises:
        UserError: a model that is none, or an encoding that was asked for and does not go with it.
    """
    from tape_ds.model import convert

    source = convert.read_config(convert.resolve(options.model)) if options.model else None
    own = getattr(source, "position_encoding", None)
    named = options.position_encoding or ([own] if own else [])
    found = []
    for name in named or positions.available():
        try:
            found.append(_configuration(source, name, options.position_options))
        except UserError as error:
            if named:
                raise
            print(f"left out: {name}: {error.problems[0].wrong}", file=sys.stderr)
    return found


def _configuration(source: Any, name: str, given: dict[str, Any] | None) -> TapeConfig:
    from tape_ds.model import convert
    from tape_ds.model.configuration import TapeConfig

    changes: dict[str, Any] = {"position_encoding": name}
    if source is not None and name == getattr(source, "position_encoding", None):
        merged = {**(source.position_options or {}), **(given or {})}
        return convert.tape_config(source, **({"position_options": merged} if given else {}))
    changes |= PLACEHOLDERS.get(name, {})
    if given:
        changes["position_options"] = {**(changes.get("position_options") or {}), **given}
    if source is None:
        return TapeConfig(**PAPER, **changes)
    return convert.tape_config(source, **{"position_options": None} | changes)


def count(config: TapeConfig, length: int | None) -> dict[str, Any]:
    """One row of the table."""
    from tape_ds.model import flops

    length = length or config.max_position_embeddings
    full, causal = (flops.multiply_adds(config, length, causal=each) for each in (False, True))
    return {
        "encoding": config.position_encoding,
        "length": length,
        "parameters (M)": round(flops.parameters(config) / flops.MEBI, 2),
        "of the encoding (M)": round(flops.position_parameters(config) / flops.MEBI, 3),
        "MACs full (G)": round(full / 1e9, 2),
        "MACs causal (G)": round(causal / 1e9, 2),
        "FLOPs full (G)": round(2 * full / 1e9, 2),
        "FLOPs causal (G)": round(2 * causal / 1e9, 2),
        "training FLOPs a token (G)": round(flops.training_flops_per_token(config, length, 1.0) / 1e9, 3),
    }


def table_3() -> list[dict[str, Any]]:
    """The paper's Table 3: published, counted here, and TAPE counted as its published code is."""
    from evaluation import published  # here: a script finds it once tape_ds is imported
    from tape_ds.model import flops
    from tape_ds.model.configuration import TapeConfig

    def counted(parameters: int, full: float, causal: float | None = None) -> dict[str, Any]:
        """A row's cells; FLOPs are 2 x MACs."""
        cells = {"FLOPs (G)": 2 * full / 1e9, "MACs (G)": full / 1e9, "parameters (M)": parameters / flops.MEBI}
        if causal is not None:
            cells |= {"FLOPs causal (G)": 2 * causal / 1e9, "MACs causal (G)": causal / 1e9}
        return {name: round(cell, 2) for name, cell in cells.items()}

    rows: list[dict[str, Any]] = []
    for row, (gflops, gmacs, millions) in published.find("Table 3").rows.items():
        name = row.lower()
        config = TapeConfig(**PAPER, position_encoding=name)
        full, causal = (flops.multiply_adds(config, TOKENS, causal=each) for each in (False, True))
        given = {"FLOPs (G)": gflops, "MACs (G)": gmacs, "parameters (M)": millions}
        rows.append({"encoding": name, "count": "published"} | given)
        if name == "tape":
            rows.append({"encoding": name, "count": "published code"} | counted(*published_tape()))
        rows.append({"encoding": name, "count": "this project"} | counted(flops.parameters(config), full, causal))
    return [dict.fromkeys(rows[-1]) | row for row in rows]


def published_tape() -> tuple[int, float]:
    """Parameters and MACs of TAPE as its published code has it.

    Every layer, the last one too, has W_x, W_up, W_down and an H x H matrix; attention runs over cosines and sines K
    wide each, although their halves are equal; the gate is evaluated twice. Its contractions across heads are einsums,
    which the paper's profiler counted as FLOPs but not as MACs.
    """
    from tape_ds.model import flops
    from tape_ds.model.configuration import TapeConfig

    rope = TapeConfig(**PAPER, position_encoding="rope")
    layers, hidden, heads = rope.num_hidden_layers, rope.hidden_size, rope.num_attention_heads
    length = rope.max_position_embeddings
    parameters = flops.parameters(rope) + layers * (hidden * PAPER_RANK + 2 * PAPER_RANK * heads + heads**2)
    macs = flops.multiply_adds(rope, length, causal=False)
    macs += layers * (2 * length**2 * hidden + 2 * length * hidden * PAPER_RANK)
    return parameters, macs


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.3f}".removesuffix("0") if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
