"""What shifting a text changes in each layer of a model, beside TAPE's Table 8: attention weights, positions, logits.

    python -m tools.stability runs/encodings/rope runs/encodings/tape
    python -m tools.stability smollm2 --tokens 1024 --layers 1 10 20 30
    python -m tools.stability "no updates=runs/one" TAPE=runs/two --texts file:book.txt --dtype float64

A text is shifted twice: ``--shift`` BOS tokens are put in front of it (*add tokens*), or its position ids start at
``--shift`` (*shift ids*). What is compared, and how, is said in ``tape_ds/scoring/stability.py``; L1 is the first
layer, and positions are those it reads, before its own update. A MODEL is anything that ``python -m evaluation`` takes
and this project computes: a run's folder, a model's, a hub id, ``smollm2``; ``NAME=MODEL`` says what its rows are
called.

Written to ``--output`` (``runs/stability``): ``stability.md``, ``.csv`` and ``.json`` (command, versions, each text's
figures).

Exit codes: 0 done; 2 something to mend.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation import inspected, options, published, texts
from evaluation.pages import numbers
from evaluation.pages.numbers import MISSING
from evaluation.perplexity_options import SPLIT
from tape_ds import results, storage
from tape_ds.arguments import Parser
from tape_ds.data.sources import Source, parse_all
from tape_ds.errors import Problem, UserError, check_folder, command, raise_if_any
from tape_ds.markdown_table import markdown_table

if TYPE_CHECKING:
    from evaluation.models import FoundModel

NAME = "stability"
LAYERS = (1, 2, 4, 8)
"""Table 8's."""
TREATMENTS = {"add_tokens": "add", "shift_ids": "shift"}
"""Name -> what stands over its columns."""
FIGURES = (
    "attention_l1",
    "attention_l1_renormalised",
    "attention_mean",
    "attention_mean_renormalised",
    "positions_percent",
)
"""Of a layer, in the order of the columns of the csv."""


Row = Mapping[str, Any]
"""What :func:`measured` gives."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then measure one model after another, then write."""
    given = sys.argv[1:] if argv is None else argv
    own = parse(given)
    found, sources = prepare(own)
    read = {name: documents(name, model, sources, own) for name, model in found.items()}
    layers = sorted(set(own.layers or default_layers(found)))
    started = results.collect(
        command=[Path(__file__).name, *given],
        config={**vars(own), "layers": layers},
        data={source.address: source.fingerprint() for source in sources},
    )
    rows = [measured(name, model, read[name], layers, own) for name, model in found.items()]
    write(rows, layers, started.finish({"layers": layers, "shift": own.shift, "models": rows}), Path(own.output))
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(prog=f"python -m tools.{NAME}", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="each MODEL or NAME=MODEL")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="default: those of 1 2 4 8 that all have")
    parser.add_argument("--tokens", type=options.length, default=512, help="of each text (default: %(default)s)")
    parser.add_argument("--texts", nargs="+", default=["stdlib"], metavar="ADDRESS", help="as in recipes")
    parser.add_argument("--count", type=int, default=4, help="texts of each address (default: %(default)s)")
    parser.add_argument("--shift", type=int, default=3, help="tokens, or positions (default: %(default)s)")
    parser.add_argument("--token", type=int, help="id of the token put in front; default: the tokenizer's BOS")
    inspected.add(parser)
    parser.add_argument("--output", default=f"runs/{NAME}", help="folder of the tables (default: %(default)s)")
    return parser.parse_args(argv)


def prepare(own: argparse.Namespace) -> tuple[dict[str, FoundModel], list[Source]]:
    """The models by name, none loaded, and the sources, none read.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = [
        Problem(f"--{name}", getattr(own, name), "too few", f"give {least} or more")
        for name, least in (("tokens", 2), ("count", 1), ("shift", 1))
        if getattr(own, name) < least
    ]
    problems += check_folder("--output", own.output)
    sources: list[Source] = []
    try:
        sources = parse_all(list(dict.fromkeys(own.texts)), "--texts")
    except UserError as error:
        problems += error.problems
    try:
        found = inspected.find(own.models, own)
    except UserError as error:
        raise UserError([*problems, *error.problems]) from error
    problems += inspected.check_layers(own.layers or [], found)
    for name, model in found.items():
        problems += check_token(name, model, own)
    raise_if_any(problems)
    return found, sources


def check_token(name: str, model: FoundModel, own: argparse.Namespace) -> list[Problem]:
    """Whether there is a token to put in front of a text."""
    token = added_token(model, own)
    if token is None:
        return [Problem("--token", None, f"the tokenizer of {name} has no BOS", "name a token's id")]
    return inspected.check_ids("--token", token, name, model)


def added_token(model: FoundModel, own: argparse.Namespace) -> int | None:
    """What is put in front of a text of this model."""
    token: int | None = model.tokenizer().bos_token_id if own.token is None else own.token
    return token


def default_layers(found: Mapping[str, FoundModel]) -> list[int]:
    """Those of Table 8 that every model has."""
    depth = min(model.config.num_hidden_layers for model in found.values())
    return [layer for layer in LAYERS if layer <= depth]


def documents(name: str, model: FoundModel, sources: Sequence[Source], own: argparse.Namespace) -> list[texts.Text]:
    """Texts of ``--tokens`` tokens each, as this model's tokenizer writes them.

    Raises:
        UserError: a source's data, too few tokens in all of its documents, tokens that the model does not know.
    """
    choice = texts.Choice(SPLIT, own.tokens, own.tokens, own.count, join=None, bare=False)
    found: list[texts.Text] = []
    problems: list[Problem] = []
    for source in sources:
        try:
            read = texts.read(source, model.tokenizer(), choice)
        except UserError as error:
            problems += [
                replace(each, remedy=each.remedy.replace("--min_tokens", "--tokens")) for each in error.problems
            ]
        else:
            several = len(sources) > 1  # two may have files of one name
            found += [replace(text, name=f"{source.address} {text.name}") if several else text for text in read]
    largest = max((int(text.ids.max()) for text in found), default=0)
    raise_if_any(problems + inspected.check_ids("--texts", largest, name, model))
    return found


def measured(
    name: str, found: FoundModel, read: Sequence[texts.Text], layers: Sequence[int], own: argparse.Namespace
) -> Row:
    """One model's figures: of each text, and their mean."""
    import torch

    from evaluation.models import used_at
    from tape_ds.scoring import stability

    print(f"{name}: {len(read)} texts of {own.tokens:,} tokens", flush=True)
    model, token = inspected.load(found), added_token(found, own)
    assert token is not None, "checked before"
    figures = {}
    with used_at(model, own.tokens + own.shift):  # yarn: one scale of the angles for all
        for text in read:
            ids_T = torch.from_numpy(text.ids.astype("int64"))
            figures[text.name] = stability.measure(model, ids_T, layers, own.shift, token)
    mean = stability.mean(figures.values())
    logits = [figure for treatment in mean.values() for figure in treatment["logits"].values() if figure is not None]
    if not all(map(math.isfinite, logits)):
        raise UserError(Problem("MODEL", name, "what it computes is not finite", "give a model whose loss is finite"))
    return {"name": name, "model": found.about(), "token": token, "mean": mean, "texts": figures}


def write(rows: Sequence[Row], layers: Sequence[int], whole: results.Result, folder: Path) -> None:
    """The tables, and the result that holds all of it."""
    text = as_markdown(rows, layers, whole)
    results.save(whole, folder / f"{NAME}.json")
    storage.write_text(folder / f"{NAME}.md", text)
    storage.write_text(folder / f"{NAME}.csv", as_csv(rows))
    print(text)
    print(f"written to {folder / NAME}.md, .csv, .json", flush=True)


def as_csv(rows: Sequence[Row]) -> str:
    """A line for each model, treatment and layer."""
    lines = [
        [row["name"], treatment, layer, *(figures[name] for name in FIGURES)]
        for row in rows
        for treatment in TREATMENTS
        for layer, figures in row["mean"][treatment]["layers"].items()
    ]
    return storage.as_csv(["model", "treatment", "layer", *FIGURES], lines)


def as_markdown(rows: Sequence[Row], layers: Sequence[int], whole: results.Result) -> str:
    """A page of three tables like Table 8, each with the published rows below ours, and one of logits."""
    tokens, shift, dtype = (whole.config[name] for name in ("tokens", "shift", "dtype"))
    attention, positions = published.find("Table 8"), published.find("Table 8, second half")
    parts = [
        "# Stability under a shift of positions",
        f"Texts of {tokens:,} tokens are shifted by {shift}: *add*, as many BOS tokens in front; *shift*, position ids "
        f"that start at {shift}. L1 is the first layer. Weights are {dtype}. The paper does not say how its "
        f"differences are taken, so that only orders of magnitude compare; its numbers are of a {attention.setting}.",
        "**Attention weights**: L1 distance between a query's weights before and after, over the text's own keys, mean "
        "over heads and queries, x10^-2.",
        _table(rows, layers, "attention_l1", 100, attention),
        "**Attention weights, renormalised**: the same, rows divided by what is left of them without the added tokens. "
        "Where an encoding goes by distances alone (RoPE, TAPE, ALiBi, T5, xPos), nothing else can change in layer 1 "
        "but by rounding, so that the published numbers are not of this kind. BiPE and NoPE read no position ids: "
        "their zeros under *shift* are no merit.",
        _table(rows, layers, "attention_l1_renormalised", 100),
        "**Positions**: norm of the change of the dot products of states (or biases on scores), % of their norm.",
        _table(rows, layers, "positions_percent", 1, positions),
        *_without_positions(rows, layers),
        "**Logits**: absolute change, and the norm of the change, % of the norm.",
        _logits(rows),
        _provenance(whole),
    ]
    return "\n\n".join(parts) + "\n"


def _table(
    rows: Sequence[Row], layers: Sequence[int], figure: str, scale: float, theirs: published.Table | None = None
) -> str:
    """Models down, treatments and layers across; published rows last."""
    header = ["", *(f"{short} L{layer}" for short in TREATMENTS.values() for layer in layers)]
    lines = []
    for row in rows:
        found = [row["mean"][name]["layers"][layer][figure] for name in TREATMENTS for layer in layers]
        lines.append([row["name"], *(shown(None if value is None else scale * value) for value in found)])
    if theirs is not None:
        lines += [[f"*published: {method}*", *_published(theirs, method, layers)] for method in theirs.rows]
    return markdown_table(header, lines)


def _published(table: published.Table, method: str, layers: Sequence[int]) -> list[str]:
    """A dash for a layer that the paper does not show."""
    asked = [published.Quantity(name, f"layer {layer}") for name in TREATMENTS for layer in layers]
    values = [table.value(method, each)[0] for each in asked]
    return [MISSING if value is None else f"*{value:g}*" for value in values]


def _logits(rows: Sequence[Row]) -> str:
    """What comes out of the last layer."""
    names = ("mean", "largest", "relative_percent")
    words = ("mean", "largest", "%")
    header = ["", *(f"{short}: {word}" for short in TREATMENTS.values() for word in words)]
    lines = [
        [row["name"], *(shown(row["mean"][treatment]["logits"][name]) for treatment in TREATMENTS for name in names)]
        for row in rows
    ]
    return markdown_table(header, lines)


def shown(value: float | None) -> str:
    """Three digits; what is below a thousandth, rounding as a rule, as a power of ten."""
    if value is not None and 0 < abs(value) < 1e-3:
        return f"{value:.0e}"
    return numbers.significant(value, 3)


def _without_positions(rows: Sequence[Row], layers: Sequence[int]) -> list[str]:
    """Why a model has a dash there."""
    nameless = [
        row["name"] for row in rows if row["mean"]["add_tokens"]["layers"][layers[0]]["positions_percent"] is None
    ]
    return [f"{', '.join(nameless)}: {inspected.NOWHERE}."] if nameless else []


def _provenance(result: results.Result) -> str:
    """One line."""
    machine = result.hardware
    gpus = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no GPU"
    return (
        f"Command: `{shlex.join(['python', '-m', f'tools.{NAME}', *result.command[1:]])}`. {machine['cpu']}, {gpus}. "
        f"torch {result.versions['torch']}, {result.finished}."
    )


if __name__ == "__main__":
    sys.exit(main())
