"""Changes in each layer of a model when a text is shifted, as in Table 8 of TAPE's paper (arXiv:2501.00712).

    python -m tools.experiments.stability runs/encodings/rope runs/encodings/tape
    python -m tools.experiments.stability "no updates=runs/one" TAPE=runs/two --texts file:book.txt --dtype float64

A text is shifted in two ways. *Add tokens* puts three BOS in front of it. *Shift ids* counts positions from 3: a model
that is invariant under shifts computes the same up to rounding. Layer 1 is the first, and positions are those it reads,
before its own update. A MODEL is a run's folder, a model's, a hub id or ``smollm2``; ``NAME=MODEL`` names its rows.

The paper defines neither number. Here, per layer and for the text's own tokens only:

- *Attention.* The L1 distance ``sum_m |A'_nm - A_nm|`` between a query's weights before and after, 0 to 2, as the mean
  over heads and queries. Weights on added tokens are left out, so a row no longer sums to 1, which is a change in
  itself: the distance is also computed with the rows divided by their sum (*renormalised*).
- *Positions.* ``|P' - P|`` in per cent of ``|P|``, both as Frobenius norms over heads and pairs of a query and a key it
  may see, where P is the layer's map of positions: dot products of states, or the bias on scores.
- *Logits.* Mean and largest ``|l' - l|``, and the norm of the difference in per cent of that of ``l``.

Written to ``--output`` (``runs/stability``): ``stability.json`` and ``stability.csv``. Exit codes: 0 done; 2 bad input.
"""

import argparse
import bisect
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tape_ds import results, storage
from tape_ds.arguments import Parser, length
from tape_ds.data.sources import Source, parse_all
from tape_ds.errors import Problem, UserError, check_folder, collecting, command, raise_if_any
from tape_ds.markdown_table import markdown_table
from tape_ds.models.loading import extendable
from tape_ds.numbers import number
from tape_ds.scoring import inspection, window_jobs
from tape_ds.scoring.inspection import LayerView
from tape_ds.scoring.models import FoundModel, used_at
from tape_ds.scoring.window_jobs import ScoredText
from tools.experiments import inspected_models

NAME = "stability"
LAYERS = (1, 2, 4, 8)
"""Table 8's."""
SHIFT = 3
"""Tokens, or positions, as in Table 8."""
COUNT = 4
"""Texts of each data spec."""
FIGURES = ("attention_l1", "attention_l1_renormalised", "positions_percent")
"""Of a layer, in the order of the columns of the csv."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then measure one model after another, then write."""
    typed = sys.argv[1:] if argv is None else argv
    parser = Parser(prog=f"python -m tools.experiments.{NAME}", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="each MODEL or NAME=MODEL")
    parser.add_argument(
        "--layers", type=int, nargs="+", metavar="N", help="default: those of 1 2 4 8 that all have"
    )
    parser.add_argument(
        "--tokens", type=length, default=512, help="of each text (default: %(default)s)"
    )
    parser.add_argument(
        "--texts", nargs="+", default=["stdlib"], metavar="SPEC", help="as in recipes"
    )
    inspected_models.add_options(parser)
    parser.add_argument(
        "--output", default=f"runs/{NAME}", help="folder of the tables (default: %(default)s)"
    )
    options = parser.parse_args(typed)
    problems = check_folder("--output", options.output)
    if options.tokens < 2:
        problems.append(Problem("--tokens", options.tokens, "too few", "give 2 or more"))
    sources: list[Source] = []
    models: dict[str, FoundModel] = {}
    with collecting(problems):
        sources = parse_all(list(dict.fromkeys(options.texts)), "--texts")
    with collecting(problems):
        models = inspected_models.find(options.models, options)
    problems += inspected_models.check_numbers("layers", options.layers, models)
    for name, model in models.items():
        if model.tokenizer().bos_token_id is None:
            reason = "its tokenizer has no BOS to put in front"
            problems.append(Problem("MODEL", name, reason, "give another model"))
    raise_if_any(problems)
    depth = min(inspected_models.sizes(model)["layers"] for model in models.values())
    if not options.layers:
        options.layers = LAYERS[: bisect.bisect(LAYERS, depth)]
    options.layers = sorted(set(options.layers))

    # of all models, before the first is loaded: a text that is too short is found at once
    texts = {name: read_texts(model, sources, options) for name, model in models.items()}
    started = results.collect(
        command=[Path(__file__).name, *typed],
        config=vars(options),
        data={source.spec: source.fingerprint() for source in sources},
    )
    rows = [measure(name, model, texts[name], options) for name, model in models.items()]
    lines = []
    for row in rows:
        for treatment, moved in row["mean"].items():
            for layer, figures in moved["layers"].items():
                lines.append([row["name"], treatment, layer, *map(figures.get, FIGURES)])
    folder = Path(options.output)
    result = started.finish({"layers": options.layers, "shift": SHIFT, "models": rows})
    results.save(result, folder / f"{NAME}.json")
    header = ["model", "treatment", "layer", *FIGURES]
    storage.write_text(folder / f"{NAME}.csv", storage.as_csv(header, lines))
    cells = []
    without_positions = {}
    for line in lines:
        cells.append([*map(str, line[:3]), *map(number, line[3:], repeat(".3g"))])
        if line[-1] is None:
            without_positions[line[0]] = f"{line[0]}: {inspected_models.NO_POSITIONS}"
    print("\n".join([markdown_table(header, cells), *without_positions.values()]))
    print(f"written to {folder / NAME}.json, .csv", flush=True)
    return 0


def read_texts(
    model: FoundModel, sources: Sequence[Source], options: argparse.Namespace
) -> list[ScoredText]:
    """Return texts of ``--tokens`` tokens each, tokenised for this model."""
    texts: list[ScoredText] = []
    problems: list[Problem] = []
    for source in sources:
        with collecting(problems):
            lengths = {
                "min_tokens": options.tokens,
                "max_tokens": options.tokens,
                "max_documents": COUNT,
            }
            read = window_jobs.read_texts(source, model.tokenizer(), split="heldout", **lengths)
            for text in read:
                # two sources may have files of one name
                if len(sources) > 1:
                    text = replace(text, name=f"{source.spec} {text.name}")
                texts.append(text)
    for index, problem in enumerate(problems):
        # the option's name here
        remedy = problem.remedy.replace("--min_tokens", "--tokens")
        problems[index] = replace(problem, remedy=remedy)
    raise_if_any(problems)
    return texts


def measure(
    name: str, found: FoundModel, texts: Sequence[ScoredText], options: argparse.Namespace
) -> dict[str, Any]:
    """Return one model's figures: of each text, and their mean."""
    print(f"{name}: {len(texts)} texts of {options.tokens:,} tokens", flush=True)
    model = inspected_models.as_own(found.load())
    token = found.tokenizer().bos_token_id
    figures = {}
    # yarn: one scale of the angles for all
    with used_at(model, options.tokens + SHIFT):
        for text in texts:
            ids_T = torch.from_numpy(text.ids.astype("int64"))
            figures[text.name] = changes(model, ids_T, options.layers, token)
    mean = mean_of(figures.values())
    for treatment in mean.values():
        if not all(map(math.isfinite, treatment["logits"].values())):
            raise UserError(inspected_models.not_finite(name))
    return {"name": name, "model": found.about(), "token": token, "mean": mean, "texts": figures}


def changes(
    model: extendable.Model, ids_T: Tensor, layers: Sequence[int], token: int, shift: int = SHIFT
) -> dict[str, dict[str, Any]]:
    """Return the changes of one text, int64 [T], by treatment: ``layers``, figures by the number of the layer, and
    ``logits``. ``shift``: how often ``token`` is added, or positions that are skipped."""
    # maps of a whole model are large: the second and third pass are compared layer by layer as they come
    before: dict[int, LayerView] = {}
    # V: the vocabulary
    logits_TV = inspection.inspect(
        model, ids_T, layers, lambda view: before.update({view.number: view})
    )
    treatments = {}
    for name, added, first in (("add_tokens", shift, 0), ("shift_ids", 0, shift)):
        by_layer: dict[int, Any] = {}

        def compare(
            view: LayerView, by_layer: dict[int, Any] = by_layer, added: int = added
        ) -> None:
            by_layer[view.number] = layer_changes(before[view.number], view, added)

        # S = T + added
        moved_S = torch.cat((ids_T.new_full((added,), token), ids_T))
        positions_S = torch.arange(len(moved_S)) + first
        moved_SV = inspection.inspect(model, moved_S, layers, compare, positions_S)
        difference_TV = moved_SV[added:] - logits_TV
        logits = {
            "mean": float(difference_TV.abs().mean(dtype=torch.float64)),
            "largest": float(difference_TV.abs().max()),
            "relative_percent": relative_percent(difference_TV, logits_TV),
        }
        treatments[name] = {"layers": by_layer, "logits": logits}
    return treatments


def layer_changes(before: LayerView, after: LayerView, added: int) -> dict[str, float | None]:
    """Return the figures of one layer, which saw ``added`` more tokens in front ``after``."""
    kept_HTT = renormalised_HTT = after.weights_HTS[:, added:, added:]
    if added:
        # a query that gives all its weight to added tokens has a sum of 0
        least = torch.finfo(kept_HTT.dtype).tiny
        renormalised_HTT = kept_HTT / kept_HTT.sum(dim=-1, keepdim=True).clamp_min(least)
    figures: dict[str, float | None] = dict.fromkeys(FIGURES)
    for name, weights_HTT in (("", kept_HTT), ("_renormalised", renormalised_HTT)):
        l1_HT = (weights_HTT - before.weights_HTS).abs().sum(dim=-1, dtype=torch.float64)
        figures[f"attention_l1{name}"] = float(l1_HT.mean())
    if before.positions is not None and after.positions is not None:
        # a query sees no later key
        whole = before.positions.matrix().tril()
        change = after.positions.matrix()[:, added:, added:].tril() - whole
        figures["positions_percent"] = relative_percent(change, whole)
    return figures


def relative_percent(difference: Tensor, whole: Tensor) -> float:
    """Return one Frobenius norm in per cent of another: 0 without a change, infinite if ``whole`` is 0."""
    changed = float(torch.linalg.vector_norm(difference, dtype=torch.float64))
    size = float(torch.linalg.vector_norm(whole, dtype=torch.float64))
    if changed == 0:
        return 0.0
    if size:
        return 100 * changed / size
    return math.inf


def mean_of(measured: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean over texts of what :func:`changes` returned; of ``largest``, the largest."""
    texts = list(measured)
    means: dict[str, Any] = {}
    for key, value in texts[0].items():
        values = list(map(itemgetter(key), texts))
        if isinstance(value, Mapping):
            means[key] = mean_of(values)
        elif value is None:
            means[key] = None
        elif key == "largest":
            means[key] = max(values)
        else:
            means[key] = sum(values) / len(values)
    return means


if __name__ == "__main__":
    sys.exit(main())
