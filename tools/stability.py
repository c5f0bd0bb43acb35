"""What shifting a text changes in each layer of a model, as in TAPE's Table 8: attention weights, positions, logits.

    python -m tools.stability runs/encodings/rope runs/encodings/tape
    python -m tools.stability smollm2 --tokens 1024 --layers 1 10 20 30
    python -m tools.stability "no updates=runs/one" TAPE=runs/two --texts file:book.txt --dtype float64

A text is shifted twice: three BOS tokens are put in front of it (*add tokens*), or its position ids start at 3
(*shift ids*). What is compared, and how, is said in ``tape_ds/scoring/stability.py``; L1 is the first
layer, and positions are those it reads, before its own update. A MODEL is anything that ``python -m evaluation`` takes
and this project computes: a run's folder, a model's, a hub id, ``smollm2``; ``NAME=MODEL`` says what its rows are
called.

Attention is told as the L1 distance between a query's weights before and after, over the text's own keys, mean over
heads and queries; *renormalised*, rows are divided by what is left of them without the added tokens. Positions are told
as the norm of the change of the states' dot products (or of the biases on scores), in per cent of their norm.

Written to ``--output`` (``runs/stability``): ``stability.json`` (command, versions, each text's figures) and
``stability.csv``. Published numbers stand beside ours where ``python -m tools.experiment table8`` measures.

Exit codes: 0 done; 2 something to mend.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import results, storage
from tape_ds.arguments import Parser, length
from tape_ds.cli.evaluate.perplexity import SPLIT
from tape_ds.data.sources import Source, parse_all
from tape_ds.errors import Problem, UserError, check_folder, collecting, command, raise_if_any
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import number
from tape_ds.scoring import inspected, texts

if TYPE_CHECKING:
    from tape_ds.scoring.models import FoundModel

NAME = "stability"
LAYERS = (1, 2, 4, 8)
"""Table 8's."""
SHIFT = 3
"""Tokens, or positions, as in Table 8."""
COUNT = 4
"""Texts of each data spec."""
FIGURES = (
    "attention_l1",
    "attention_l1_renormalised",
    "attention_mean",
    "attention_mean_renormalised",
    "positions_percent",
)
"""Of a layer, in the order of the columns of the csv."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then measure one model after another, then write."""
    given = sys.argv[1:] if argv is None else argv
    own = parse(given)
    found, sources = prepare(own)
    read = {name: documents(name, model, sources, own) for name, model in found.items()}
    started = results.collect(
        command=[Path(__file__).name, *given],
        config=vars(own),
        data={source.spec: source.fingerprint() for source in sources},
    )
    rows = [measured(name, model, read[name], own) for name, model in found.items()]
    write(rows, started.finish({"layers": own.layers, "shift": SHIFT, "models": rows}), Path(own.output))
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the command line."""
    parser = Parser(prog=f"python -m tools.{NAME}", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="each MODEL or NAME=MODEL")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="default: those of 1 2 4 8 that all have")
    parser.add_argument("--tokens", type=length, default=512, help="of each text (default: %(default)s)")
    parser.add_argument("--texts", nargs="+", default=["stdlib"], metavar="SPEC", help="as in recipes")
    parser.add_argument("--token", type=int, help="id of the token put in front; default: the tokenizer's BOS")
    inspected.add(parser)
    parser.add_argument("--output", default=f"runs/{NAME}", help="folder of the tables (default: %(default)s)")
    return parser.parse_args(argv)


def prepare(own: argparse.Namespace) -> tuple[dict[str, FoundModel], list[Source]]:
    """Return the models by name, none loaded, and the sources, none read; fills in the layers.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = check_folder("--output", own.output)
    if own.tokens < 2:
        problems.append(Problem("--tokens", own.tokens, "too few", "give 2 or more"))
    sources: list[Source] = []
    found: dict[str, FoundModel] = {}
    with collecting(problems):
        sources = parse_all(list(dict.fromkeys(own.texts)), "--texts")
    with collecting(problems):
        found = inspected.find(own.models, own)
    problems += inspected.check_numbers("layers", own.layers, found)
    for name, model in found.items():
        token = added_token(model, own)
        if token is None:
            problems.append(Problem("--token", None, f"the tokenizer of {name} has no BOS", "name a token's id"))
        else:
            problems += inspected.check_ids("--token", token, name, model)
    raise_if_any(problems)
    depth = min(inspected.count(model, "layers") for model in found.values())
    own.layers = sorted(set(own.layers or [layer for layer in LAYERS if layer <= depth]))
    return found, sources


def added_token(model: FoundModel, own: argparse.Namespace) -> int | None:
    """Return what is put in front of a text of this model."""
    token: int | None = model.tokenizer().bos_token_id if own.token is None else own.token
    return token


def documents(
    name: str, model: FoundModel, sources: Sequence[Source], own: argparse.Namespace
) -> list[texts.ScoredText]:
    """Texts of ``--tokens`` tokens each, as this model's tokenizer writes them.

    Raises:
        UserError: a source's data, too few tokens in all of its documents, tokens that the model does not know.
    """
    choice = {"min_tokens": own.tokens, "max_tokens": own.tokens, "max_documents": COUNT}
    found: list[texts.ScoredText] = []
    problems: list[Problem] = []
    for source in sources:
        with collecting(problems):
            read = texts.read(source, model.tokenizer(), split=SPLIT, **choice)
            several = len(sources) > 1  # two may have files of one name
            found += [replace(text, name=f"{source.spec} {text.name}") if several else text for text in read]
    problems = [replace(each, remedy=each.remedy.replace("--min_tokens", "--tokens")) for each in problems]
    largest = max((int(text.ids.max()) for text in found), default=0)
    raise_if_any(problems + inspected.check_ids("--texts", largest, name, model))
    return found


def measured(name: str, found: FoundModel, read: Sequence[texts.ScoredText], own: argparse.Namespace) -> dict[str, Any]:
    """Return one model's figures: of each text, and their mean."""
    import torch

    from tape_ds.scoring import inspection, stability
    from tape_ds.scoring.models import used_at

    print(f"{name}: {len(read)} texts of {own.tokens:,} tokens", flush=True)
    model, token = inspection.as_own(found.load()), added_token(found, own)
    assert token is not None, "checked before"
    figures = {}
    with used_at(model, own.tokens + SHIFT):  # yarn: one scale of the angles for all
        for text in read:
            ids_T = torch.from_numpy(text.ids.astype("int64"))
            figures[text.name] = stability.measure(model, ids_T, own.layers, SHIFT, token)
    mean = stability.mean(figures.values())
    logits = [figure for treatment in mean.values() for figure in treatment["logits"].values() if figure is not None]
    if not all(map(math.isfinite, logits)):
        raise UserError(inspected.not_finite(name))
    return {"name": name, "model": found.about(), "token": token, "mean": mean, "texts": figures}


def write(rows: Sequence[dict[str, Any]], whole: results.Result, folder: Path) -> None:
    """The result, and a line for each model, treatment and layer of it."""
    header = ["model", "treatment", "layer", *FIGURES]
    lines = [
        [row["name"], treatment, layer, *(figures[name] for name in FIGURES)]
        for row in rows
        for treatment, moved in row["mean"].items()
        for layer, figures in moved["layers"].items()
    ]
    results.save(whole, folder / f"{NAME}.json")
    storage.write_text(folder / f"{NAME}.csv", storage.as_csv(header, lines))
    cells = [[*map(str, line[:3]), *(number(value, ".3g") for value in line[3:])] for line in lines]
    print(markdown_table(header, cells))
    for name in dict.fromkeys(line[0] for line in lines if line[-1] is None):
        print(f"{name}: {inspected.NOWHERE}")
    print(f"written to {folder / NAME}.json, .csv", flush=True)


if __name__ == "__main__":
    sys.exit(main())
