"""docs/results/decoders.md's table, from the list that the tests compute: ``python -m tests.models.families_page``."""

import functools
import re
from pathlib import Path

import transformers

from tape_ds.encodings import trained_rope
from tape_ds.models import decoder_configuration, hybrids
from tape_ds.models.loading import extendable
from tests.models.tiny_decoders import families, tiny_config

PAGE = Path(__file__).parents[2] / "docs" / "results" / "decoders.md"
KINDS = ("yarn", "yarn_revised", "linear", "ntk", "dynamic")
CARRIES = {
    "conv": "short convolutions",
    "hybrid": "recurrences beside attention",
    "linear_attention": "recurrences",
}


@functools.cache
def computed() -> dict[str, str]:
    """Return what is said of each family, in words."""
    return {family: _said(family) for family in families()}


def taken() -> list[str]:
    return [family for family, said in computed().items() if not said.startswith("refused")]


def unscaled(family: str) -> tuple[str, ...]:
    """Return the scaling that a class does not compute, or that would reach no layer that sees everything."""
    if family in (*decoder_configuration.ROTATED_WINDOWS, "granite_swa", "granitemoe_swa"):
        return KINDS
    # their own is longrope, Phi-3.5-MoE's with two more factors
    return {
        "tape_gptj": ("dynamic",),
        "phi3": ("dynamic",),
        "phimoe": ("yarn", "yarn_revised", "linear", "dynamic"),
    }.get(family, ())


def _said(family: str) -> str:
    native = tiny_config(family)
    if problems := extendable.check(native):
        return f"refused: {problems[0].wrong.removeprefix(f'{family}: ')}"
    kinds = set(decoder_configuration.layer_kinds(native))
    parts = [words for kind, words in CARRIES.items() if kind in kinds]
    parts += [
        need
        for need in ("window", "softcap", "sinks")
        if need in decoder_configuration.needs(native)
    ]
    return f"{', '.join(parts) or 'plain attention'}; {_scaling(family, native)}"


def _scaling(family: str, native: transformers.PreTrainedConfig) -> str:
    if not hybrids.rotates(native):
        return "no positions in attention: extended by training alone"
    own = trained_rope.read(native.to_dict(), family)
    if own.type in trained_rope.KEPT:
        return f"its own {own.type} is kept"
    if own.is_scaled:
        return f"its own {own.type} is extended"
    left_out = unscaled(family)
    if not left_out:
        return "every scaling"
    rest = [kind for kind in KINDS if kind not in left_out and kind != "yarn_revised"]
    return f"scaling: {', '.join(rest) or 'none'}"


def table() -> str:
    """Return the table: families with the same words in one row, the largest rows first, refused ones last."""
    rows: dict[str, list[str]] = {}
    for family, said in computed().items():
        rows.setdefault(said, []).append(family)
    ordered = sorted(
        rows.items(), key=lambda row: (row[0].startswith("refused"), -len(row[1]), row[1])
    )
    lines = [f"| Families (transformers {transformers.__version__}) | |", "|---|---|"]
    return "\n".join(
        [*lines, *(f"| {', '.join(sorted(names))} | {said} |" for said, names in ordered)]
    )


def with_table(page: str) -> str:
    return re.sub(r"\| Families \(.*", lambda _: table() + "\n", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
