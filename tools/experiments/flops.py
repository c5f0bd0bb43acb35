"""Count parameters, multiply-adds and FLOPs of the TAPE paper's pretrained model, with each positional encoding.

    python -m tools.experiments.flops                                  every encoding, a sequence of 1,024 tokens
    python -m tools.experiments.flops --table3                         the TAPE paper's Table 3 and our count
    python -m tools.experiments.flops --table3 --output runs/table3    and table3.json there

MACs have two conventions: ``full`` counts the whole score matrix, as the paper does, ``causal`` the half that a causal
kernel computes. FLOPs are 2 x MACs; the paper's include small operations that its MACs leave out. "M" is 2^20, as in
the paper. The cache is in 16 bits. No model of this size is loaded or run; tape-ds plan counts a recipe's model.
Exit codes: 0 done; 2 bad input.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from tape_ds import encodings, results
from tape_ds.arguments import Parser
from tape_ds.encodings import registry
from tape_ds.errors import check_folder, command, raise_if_any
from tape_ds.markdown_table import markdown_table
from tape_ds.models import flops
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.llama import TapeForCausalLM
from tools.experiment import published

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
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 1.0,
    "original_max_position_embeddings": 1_024,
}
PLACEHOLDERS: dict[str, dict[str, Any]] = {
    "yarn": {"rope_parameters": YARN},
    "bipe_rope": {"position_options": {"separators": [0, 1]}},
    "bipe_alibi": {"position_options": {"separators": [0, 1]}},
    "cope": {"attention_backend": "sdpa"},
}
"""Required options of some encodings; none changes a count."""
TOKENS = 1_024
"""Of the one sequence of a forward pass."""
MEBI = 2**20


@command
def main(argv: list[str] | None = None) -> int:
    """Parse, check, count, store, print."""
    typed = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="python -m tools.experiments.flops", description=__doc__)
    parser.add_argument("--table3", action="store_true", help="the TAPE paper's Table 3")
    parser.add_argument("--output", help="folder of table3.json, or flops.json")
    options = parser.parse_args(typed)
    raise_if_any(check_folder("--output", options.output or "."))
    name = "flops"
    count = every_encoding
    if options.table3:
        name = "table3"
        count = table_3
    rows = count()
    if options.output is not None:
        started = results.collect(
            command=[Path(__file__).name, *typed], config={"length": TOKENS, **PAPER}
        )
        results.save(started.finish({"rows": rows}), Path(options.output) / f"{name}.json")

    print(markdown_table(list(rows[0]), [list(map(shown, row.values())) for row in rows]))
    return 0


def shown(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.3f}".removesuffix("0")
    return str(cell)


def parameters(config: TapeConfig) -> int:
    """Return all parameters; an output head tied to the embeddings counts once."""
    with torch.device("meta"):
        return TapeForCausalLM(config).num_parameters()


def every_encoding() -> list[dict[str, Any]]:
    """Return a row for each encoding."""
    rows = []
    for name in encodings.available():
        config = TapeConfig(**PAPER, position_encoding=name, **PLACEHOLDERS.get(name, {}))
        full = flops.multiply_adds(config, TOKENS, causal=False)
        causal = flops.multiply_adds(config, TOKENS, causal=True)
        trained = flops.training_flops_per_token(config, TOKENS, 1.0)
        row = {
            "encoding": name,
            "parameters (M)": round(parameters(config) / MEBI, 2),
            "of the encoding (M)": round(encoding_parameters(config) / MEBI, 3),
            "MACs full (G)": round(full / 1e9, 2),
            "MACs causal (G)": round(causal / 1e9, 2),
            "training FLOPs a token (G)": round(trained / 1e9, 3),
            # two bytes a number
            "cache (KiB a token)": round(2 * cached_numbers(config) / 1024, 2),
        }
        rows.append(row)
    return rows


def encoding_parameters(config: TapeConfig) -> int:
    with torch.device("meta"):
        encoding = torch.nn.ModuleList([registry.build(config)])
        for index in range(config.num_hidden_layers):
            encoding.append(registry.build_layer(config, index))
    return sum(map(torch.numel, encoding.parameters()))


def cached_numbers(config: TapeConfig) -> float:
    """Return the numbers that a cache keeps of a token, counted in a model that is narrow outside attention."""
    # what is outside attention keeps nothing
    narrow = TapeConfig.from_dict(config.to_dict() | {"vocab_size": 64, "intermediate_size": 16})
    ids = torch.arange(16)[None]
    cache = DynamicCache(config=narrow)
    with torch.no_grad():
        TapeForCausalLM(narrow).eval()(input_ids=ids, past_key_values=cache)
    kept = 0
    for layer in cache.layers:
        kept += layer.keys.numel() + layer.values.numel()
    return kept / ids.numel()


def table_3() -> list[dict[str, Any]]:
    """Return the paper's Table 3: published, counted here, and TAPE counted as its published code is."""

    def counted(weights: int, full: float, causal: float | None = None) -> dict[str, Any]:
        cells = {
            "FLOPs (G)": 2 * full / 1e9,
            "MACs (G)": full / 1e9,
            "parameters (M)": weights / MEBI,
        }
        if causal is not None:
            cells |= {"FLOPs causal (G)": 2 * causal / 1e9, "MACs causal (G)": causal / 1e9}
        return {name: round(cell, 2) for name, cell in cells.items()}

    rows: list[dict[str, Any]] = []
    (published_table,) = published.tables_of("Table 3")
    for row, numbers in published_table.rows.items():
        name = row.lower()
        (gflops, gmacs, millions) = numbers.values()
        config = TapeConfig(**PAPER, position_encoding=name)
        full = flops.multiply_adds(config, TOKENS, causal=False)
        causal = flops.multiply_adds(config, TOKENS, causal=True)
        given = {"FLOPs (G)": gflops, "MACs (G)": gmacs, "parameters (M)": millions}
        rows.append({"encoding": name, "count": "published"} | given)
        if name == "tape":
            # In the published code every layer, including the last one, has W_x, W_up, W_down and an H x H matrix;
            # attention runs over cosines and sines of width K each, although their halves are equal; the gate is
            # evaluated twice. Its contractions across heads are einsums, which the paper's profiler counted as FLOPs
            # but not as MACs.
            rope = TapeConfig(**PAPER, position_encoding="rope")
            layers = rope.num_hidden_layers
            hidden = rope.hidden_size
            heads = rope.num_attention_heads
            more = layers * (hidden * PAPER_RANK + 2 * PAPER_RANK * heads + heads**2)
            macs = flops.multiply_adds(rope, TOKENS, causal=False)
            macs += layers * (2 * TOKENS**2 * hidden + 2 * TOKENS * hidden * PAPER_RANK)
            rows.append(
                {"encoding": name, "count": "published code"}
                | counted(parameters(rope) + more, macs)
            )
        rows.append(
            {"encoding": name, "count": "this project"} | counted(parameters(config), full, causal)
        )
    # the published rows have no causal columns
    return [dict.fromkeys(rows[-1]) | row for row in rows]


if __name__ == "__main__":
    sys.exit(main())
