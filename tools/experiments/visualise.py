"""Position states and attention of a model, layer by layer and head by head: TAPE's Figure 7.

    python -m tools.experiments.visualise smollm2 --prompt "The quick brown fox jumps over the lazy dog, and sleeps on."
    python -m tools.experiments.visualise TAPE=runs/one --against RoPE=runs/two --text book.txt --layers 1 4 8

Three quantities for each query and each key before it, on the first ``--tokens`` of the text: the dot product of the
position states as each layer reads them (or the bias on scores, if the encoding has one), the attention weight, and
with ``--against`` the difference of the two models' weights. Layer and head 1 are the first; "mean" is over heads.

Written to ``--output`` (``runs/visualise``): ``positions.png``, ``attention.png``, ``difference.png`` (a column for
each layer, a row for each head; the first two are MODEL's) and ``visualise.json``. Pictures of an earlier command in
that folder are deleted. Exit codes: 0 done; 2 bad input.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tape_ds import results, storage
from tape_ds.arguments import Parser, length
from tape_ds.data.prompting import prompt_ids
from tape_ds.errors import Problem, UserError, check_folder, collecting, command, raise_if_any
from tape_ds.scoring import inspection
from tape_ds.scoring.inspection import LayerView
from tape_ds.scoring.models import FoundModel, used_at
from tools.experiments import inspected_models

NAME = "visualise"
LAYERS = 8
HEADS = 2
"""Number shown by default; the mean over heads is added."""
MOST_TOKENS = 1024
"""A map is about 200 pixels wide."""
DPI = 110
EVEN = "cividis"
APART = "PuOr"
"""Colours of growing numbers, and of numbers around 0; both suit colour-blind readers."""
SHARE_WITHIN = 0.998
"""Share of signed numbers within the scale of colours: a single pair would make the others pale."""


@dataclass(frozen=True)
class MapKind:
    """Maps of one quantity, which share their colours."""

    name: str
    unit: str
    maps: Mapping[tuple[str, str], np.ndarray]
    """By layer and head; float [T, T], the part above the diagonal is not shown."""
    signed: bool = False
    """Whether numbers are around 0, in two colours."""
    rooted: bool = False
    """Whether colours follow the square root of a number, which shows small numbers next to large ones."""

    def limits(self) -> tuple[float, float]:
        """Return the numbers of the first and the last colour."""
        shown = np.concatenate(
            [map_TT[np.tril_indices(len(map_TT))] for map_TT in self.maps.values()]
        )
        low = float(shown.min())
        high = float(shown.max())
        if self.signed:
            high = float(np.quantile(np.abs(shown), SHARE_WITHIN)) or max(-low, high) or 1.0
            return -high, high
        if self.rooted:
            low = min(low, 0.0)
        if high > low:
            return (low, high)
        # equal numbers everywhere: the colour in the middle
        return (low - 0.5, low + 0.5)


@dataclass
class SeenModel:
    """Attention and positions of one model, in fp32."""

    name: str
    heads: int
    """H."""
    weights: dict[int, np.ndarray] = field(default_factory=dict)
    """Layer -> [H, T, T]."""
    positions: dict[int, np.ndarray] = field(default_factory=dict)
    """Layer -> [1, T, T], [G, T, T] or [H, T, T]; empty if no layer has a map of positions."""
    unit: str = ""
    """Of ``positions``."""

    def keep(self, view: LayerView) -> None:
        self.weights[view.number] = view.weights_HTS.float().cpu().numpy()
        if view.positions is not None:
            self.positions[view.number] = view.positions.matrix().float().cpu().numpy()
            self.unit = view.positions.kind
            if self.unit == "dot product":
                self.unit = "dot product / pairs of columns"

    def is_finite(self) -> bool:
        """Return whether all that is shown of it is finite, which is not above the diagonal."""
        maps = (*self.weights.values(), *self.positions.values())
        return all(np.isfinite(np.tril(shown)).all() for shown in maps)


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then compute, then draw."""
    typed = sys.argv[1:] if argv is None else argv
    parser = Parser(prog=f"python -m tools.experiments.{NAME}", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="MODEL or NAME=MODEL")
    parser.add_argument(
        "--against", metavar="OTHER", help="a second one; differences are MODEL minus OTHER"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", metavar="FILE", help="UTF-8; its beginning is shown")
    source.add_argument("--prompt", metavar="TEXT", help="the text itself")
    parser.add_argument("--tokens", type=length, default=96, help="at most (default: %(default)s)")
    parser.add_argument(
        "--layers", type=int, nargs="+", metavar="N", help=f"default: {LAYERS}, evenly spaced"
    )
    parser.add_argument(
        "--heads", type=int, nargs="+", metavar="N", help="default: the first and the last"
    )
    inspected_models.add_options(parser)
    parser.add_argument(
        "--output", default=f"runs/{NAME}", help="folder of the pictures (default: %(default)s)"
    )
    options = parser.parse_args(typed)
    models, ids = prepare(options)
    digest = hashlib.sha256(np.asarray(ids, "<i8").tobytes()).hexdigest()
    text = "prompt" if options.text is None else options.text
    started = results.collect(
        command=[Path(__file__).name, *typed], config=vars(options), data={text: digest}
    )
    seen = []
    figures: dict[str, Any] = {"models": [], "tokens": len(ids)}
    for name, model in models.items():
        loaded = inspected_models.as_own(model.load())
        one = SeenModel(name, loaded.config.num_attention_heads)
        with used_at(loaded, len(ids)):
            inspection.inspect(loaded, torch.tensor(ids), options.layers, one.keep)
        if not one.is_finite():
            raise UserError(inspected_models.not_finite(name))
        positions = one.unit
        if not one.positions:
            positions = f"none: {inspected_models.NO_POSITIONS}"
            print(f"{name}: no map of positions: {inspected_models.NO_POSITIONS}")
        figures["models"].append({"name": name, "model": model.about(), "positions": positions})
        seen.append(one)

    kinds = {}
    if seen[0].positions:
        maps = position_maps(seen[0], options.heads)
        kinds["positions.png"] = MapKind(f"positions: {seen[0].name}", seen[0].unit, maps)
    attention = attention_maps(seen[0].weights, options.heads)
    unit = "attention weight (colour: its root)"
    kinds["attention.png"] = MapKind(f"attention: {seen[0].name}", unit, attention, rooted=True)
    if len(seen) > 1:
        difference = {}
        distances = {}
        for layer, weights_HTT in seen[0].weights.items():
            difference[layer] = weights_HTT - seen[1].weights[layer]
            # mean over heads and queries
            distances[layer] = float(np.abs(difference[layer]).sum(axis=-1).mean())
        figures["attention_l1_between_models"] = distances
        title = f"attention: {seen[0].name} minus {seen[1].name}"
        unit = "difference of attention weights (colour: its root)"
        maps = attention_maps(difference, options.heads)
        kinds["difference.png"] = MapKind(title, unit, maps, signed=True, rooted=True)
    folder = Path(options.output)
    for file in ("positions.png", "attention.png", "difference.png"):
        if file in kinds:
            draw(kinds[file], folder / file)
        else:
            (folder / file).unlink(missing_ok=True)
    results.save(started.finish(figures), folder / f"{NAME}.json")
    for what, total in inspected_models.sizes(next(iter(models.values()))).items():
        numbers = ", ".join(map(str, vars(options)[what]))
        print(f"{what} shown: {numbers} of {total}; --{what} names others")
    print(f"written to {folder}: {', '.join(kinds)}, {NAME}.json", flush=True)
    return 0


def prepare(options: argparse.Namespace) -> tuple[dict[str, FoundModel], list[int]]:
    """Return the models by name, not loaded yet, and the text's token ids; complete the layers and heads."""
    problems = check_folder("--output", options.output)
    field_name = "--prompt"
    text = options.prompt
    if options.text is not None:
        field_name = "--text"
        text = options.text
        try:
            text = Path(options.text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = f"cannot be read ({error})"
            problems.append(Problem("--text", text, reason, "name a file of UTF-8 text"))
    elif not storage.is_utf8(text):
        shown = storage.shown(text)
        problems.append(Problem("--prompt", shown, "is not UTF-8", "write it in UTF-8"))
    names = [options.model]
    if options.against is not None:
        names.append(options.against)
    models: dict[str, FoundModel] = {}
    with collecting(problems):
        models = inspected_models.find(names, options)
    sizes = list(map(inspected_models.sizes, models.values()))
    for what in ("layers", "heads"):
        problems += inspected_models.check_numbers(what, vars(options)[what], models)
    if sizes and sizes[-1] != sizes[0]:
        reason = f"it has {sizes[1]}, the other {sizes[0]}"
        problems.append(Problem("--against", options.against, reason, "compare models of one size"))
    raise_if_any(problems)
    for what, most in (("layers", LAYERS), ("heads", HEADS)):
        # evenly spaced numbers from 1, with the first and the last
        count = sizes[0][what]
        spread = map(round, np.linspace(1, count, min(count, most)).tolist())
        vars(options)[what] = sorted(set(vars(options)[what] or spread))

    read = [prompt_ids(text, model.tokenizer())[: options.tokens] for model in models.values()]
    ids: list[int] = read[0]
    if len(ids) < 2:
        remedy = "give a text of 2 tokens or more"
        raise UserError(Problem(field_name, options.text or text, f"{len(ids)} tokens", remedy))
    if read[-1] != ids:
        reason = "its tokenizer splits the text in another way"
        remedy = "compare models that share a tokenizer"
        raise UserError(Problem("--against", options.against, reason, remedy))
    if len(ids) > MOST_TOKENS:
        reason = f"more than {MOST_TOKENS:,} tokens cannot be distinguished in a picture"
        raise UserError(Problem("--tokens", options.tokens, reason, "show fewer"))
    return models, ids


def position_maps(seen: SeenModel, heads: Sequence[int]) -> dict[tuple[str, str], np.ndarray]:
    """Return for each layer the states that the chosen heads read; one for all, if they share it."""
    maps = {}
    most = max(map(len, seen.positions.values()))
    # query heads that share a state
    share = seen.heads // most
    for layer, states in seen.positions.items():
        for state in sorted({(head - 1) // share for head in heads}):
            name = f"head {state + 1}"
            if most == 1:
                name = "all heads"
            elif share > 1:
                name = f"heads {state * share + 1} to {(state + 1) * share}"
            # a layer may have one state where others have more
            maps[f"layer {layer}", name] = states[min(state, len(states) - 1)]
    return maps


def attention_maps(
    weights: Mapping[int, np.ndarray], heads: Sequence[int]
) -> dict[tuple[str, str], np.ndarray]:
    """Return for each layer the mean over all heads, and the chosen heads."""
    maps = {}
    for number, weights_HTT in weights.items():
        maps[f"layer {number}", "mean"] = weights_HTT.mean(axis=0, dtype=np.float32)
        for head in heads:
            maps[f"layer {number}", f"head {head}"] = weights_HTT[head - 1]
    return maps


def draw(kind: MapKind, path: Path) -> None:
    """Draw a row of panels for each head and a column for each layer, with one scale of colours."""
    layers, heads = map(list, map(dict.fromkeys, zip(*kind.maps, strict=True)))
    figure = Figure(figsize=(1.6 + 1.9 * len(layers), 0.9 + 1.9 * len(heads)), layout="constrained")
    panels = figure.subplots(len(heads), len(layers), squeeze=False, sharex=True, sharey=True)
    # one scale for all, so that colours compare
    low, high = kind.limits()
    norm = Normalize(low, high)
    colours = EVEN
    extend = "neither"
    if kind.signed:
        colours = APART
        # single pairs beyond the scale, see SHARE_WITHIN
        extend = "both"
    if kind.rooted:
        root = lambda x: np.sign(x) * np.sqrt(np.abs(x))  # noqa: E731
        norm = FuncNorm((root, lambda x: np.sign(x) * np.square(x)), vmin=low, vmax=high)
    for row, head in enumerate(heads):
        for column, layer in enumerate(layers):
            axes = panels[row][column]
            values_TT = kind.maps[layer, head].astype(np.float32)
            # blank after the query
            values_TT = np.where(np.tri(len(values_TT), dtype=bool), values_TT, np.nan)
            # tokens are counted from 1
            last = len(values_TT) + 0.5
            image = axes.imshow(
                values_TT,
                cmap=colours,
                norm=norm,
                interpolation="nearest",
                extent=(0.5, last, last, 0.5),
            )
            axes.spines[["top", "right"]].set_visible(False)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(3, integer=True))
            if row == 0:
                axes.set_title(layer, fontsize="medium", parse_math=False)
            if column == 0:
                axes.set_ylabel(head, parse_math=False)
    figure.suptitle(kind.name, fontsize="medium", parse_math=False)
    figure.supxlabel("key (token)", fontsize="medium")
    figure.supylabel("query (token), by head", fontsize="medium")
    bar = figure.colorbar(image, ax=panels, label=kind.unit, extend=extend)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    storage.write_file(path, lambda part: figure.savefig(part, dpi=DPI, format="png"))


if __name__ == "__main__":
    sys.exit(main())
