"""What shifting a text changes in each layer of a model, as in TAPE's Table 8: attention weights, positions, logits.

    python -m tools.experiments.stability runs/encodings/rope runs/encodings/tape
    python -m tools.experiments.stability smollm2 --tokens 1024 --layers 1 10 20 30
    python -m tools.experiments.stability "no updates=runs/one" TAPE=runs/two --texts file:book.txt --dtype float64

A text is shifted in two ways: three BOS tokens are put in front of it (*add tokens*), or its position ids start at 3
(*shift ids*). tools/experiments/shifts.py has the definitions; layer 1 is the first, and positions are those it reads,
before its own update. A MODEL is a run's folder, a model's, a hub id or ``smollm2``; ``NAME=MODEL`` names its rows.

Attention is the L1 distance between a query's weights before and after, over the text's own keys, mean over heads and
queries; *renormalised*, rows are divided by their sum without the added tokens. Positions are the norm of the change of
the states' dot products (or of the biases on scores), in per cent of their norm.

Written to ``--output`` (``runs/stability``): ``stability.json`` (command, versions, figures of each text) and
``stability.csv``. ``python -m tools.experiment table8`` shows the published numbers, too.

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
from tape_ds.arguments import Parser
from tape_ds.data.sources import Source, parse_all
from tape_ds.errors import Problem, UserError, check_folder, collecting, command, raise_if_any
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import number
from tape_ds.scoring import options
from tools.experiments import inspected_models

if TYPE_CHECKING:
    from tape_ds.scoring.models import FoundModel
    from tape_ds.scoring.scored_texts import ScoredText

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
    typed = sys.argv[1:] if argv is None else argv
    own = parse(typed)
    models, sources, tokens = prepare(own)
    texts = {name: read_texts(name, model, sources, own) for name, model in models.items()}
    started = results.collect(
        command=[Path(__file__).name, *typed],
        config=vars(own),
        data={source.spec: source.fingerprint() for source in sources},
    )
    rows = [measure(name, model, texts[name], tokens[name], own) for name, model in models.items()]
    write(rows, started.finish({"layers": own.layers, "shift": SHIFT, "models": rows}), Path(own.output))
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog=f"python -m tools.experiments.{NAME}", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="each MODEL or NAME=MODEL")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="default: those of 1 2 4 8 that all have")
    parser.add_argument("--tokens", type=options.length, default=512, help="of each text (default: %(default)s)")
    parser.add_argument("--texts", nargs="+", default=["stdlib"], metavar="SPEC", help="as in recipes")
    parser.add_argument("--token", type=int, help="id of the token put in front; default: the tokenizer's BOS")
    inspected_models.add_options(parser)
    parser.add_argument("--output", default=f"runs/{NAME}", help="folder of the tables (default: %(default)s)")
    return parser.parse_args(argv)


def prepare(own: argparse.Namespace) -> tuple[dict[str, FoundModel], list[Source], dict[str, int]]:
    """Return the models, not loaded yet, the sources, not read yet, and the token that is put in front for each model;
    complete the layers.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = check_folder("--output", own.output)
    if own.tokens < 2:
        problems.append(Problem("--tokens", own.tokens, "too few", "give 2 or more"))
    sources: list[Source] = []
    models: dict[str, FoundModel] = {}
    with collecting(problems):
        sources = parse_all(list(dict.fromkeys(own.texts)), "--texts")
    with collecting(problems):
        models = inspected_models.find(own.models, own)
    problems += inspected_models.check_numbers("layers", own.layers, models)
    tokens = {}
    for name, model in models.items():
        tokens[name] = model.tokenizer().bos_token_id if own.token is None else own.token
        if tokens[name] is None:
            problems.append(Problem("--token", None, f"the tokenizer of {name} has no BOS", "name a token's id"))
        else:
            problems += inspected_models.check_ids("--token", tokens[name], name, model)
    raise_if_any(problems)
    depth = min(inspected_models.count(model, "layers") for model in models.values())
    own.layers = sorted(set(own.layers or [layer for layer in LAYERS if layer <= depth]))
    return models, sources, tokens


def read_texts(name: str, model: FoundModel, sources: Sequence[Source], own: argparse.Namespace) -> list[ScoredText]:
    """Return texts of ``--tokens`` tokens each, tokenised for this model.

    Raises:
        UserError: a source's data, documents that are all too short, tokens that the model does not know.
    """
    from tape_ds.scoring import scored_texts

    texts: list[ScoredText] = []
    problems: list[Problem] = []
    for source in sources:
        with collecting(problems):
            lengths = {"min_tokens": own.tokens, "max_tokens": own.tokens, "max_documents": COUNT}
            read = scored_texts.read(source, model.tokenizer(), split="heldout", **lengths)
            if len(sources) > 1:  # two may have files of one name
                read = [replace(text, name=f"{source.spec} {text.name}") for text in read]
            texts += read
    problems = [replace(each, remedy=each.remedy.replace("--min_tokens", "--tokens")) for each in problems]
    largest = max((int(text.ids.max()) for text in texts), default=0)
    raise_if_any(problems + inspected_models.check_ids("--texts", largest, name, model))
    return texts


def measure(
    name: str, found: FoundModel, texts: Sequence[ScoredText], token: int, own: argparse.Namespace
) -> dict[str, Any]:
    """Return one model's figures: of each text, and their mean."""
    import torch

    from tape_ds.scoring import inspection
    from tape_ds.scoring.models import used_at
    from tools.experiments import shifts

    print(f"{name}: {len(texts)} texts of {own.tokens:,} tokens", flush=True)
    model = inspection.as_own(found.load())
    figures = {}
    with used_at(model, own.tokens + SHIFT):  # yarn: one scale of the angles for all
        for text in texts:
            ids_T = torch.from_numpy(text.ids.astype("int64"))
            figures[text.name] = shifts.measure(model, ids_T, own.layers, SHIFT, token)
    mean = shifts.mean(figures.values())
    logits = [figure for treatment in mean.values() for figure in treatment["logits"].values() if figure is not None]
    if not all(map(math.isfinite, logits)):
        raise UserError(inspected_models.not_finite(name))
    return {"name": name, "model": found.about(), "token": token, "mean": mean, "texts": figures}


def write(rows: Sequence[dict[str, Any]], result: results.Result, folder: Path) -> None:
    """Write the result, and a line for each model, treatment and layer."""
    header = ["model", "treatment", "layer", *FIGURES]
    lines = [
        [row["name"], treatment, layer, *(figures[name] for name in FIGURES)]
        for row in rows
        for treatment, moved in row["mean"].items()
        for layer, figures in moved["layers"].items()
    ]
    results.save(result, folder / f"{NAME}.json")
    storage.write_text(folder / f"{NAME}.csv", storage.as_csv(header, lines))
    cells = [[*map(str, line[:3]), *(number(value, ".3g") for value in line[3:])] for line in lines]
    print(markdown_table(header, cells))
    for name in dict.fromkeys(line[0] for line in lines if line[-1] is None):
        print(f"{name}: {inspected_models.NO_POSITIONS}")
    print(f"written to {folder / NAME}.json, .csv", flush=True)


if __name__ == "__main__":
    sys.exit(main())
