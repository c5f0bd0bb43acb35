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
        shown = np.concatenate([each[np.tril_indices(len(each))] for each in self.maps.values()])
        low = float(shown.min())
        high = float(shown.max())
        if self.signed:
            high = float(np.quantile(np.abs(shown), SHARE_WITHIN)) or max(-low, high) or 1.0
            return -high, high
        low = min(low, 0.0) if self.rooted else low
        if high > low:
            return (low, high)
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
            kind = view.positions.kind
            self.unit = "dot product / pairs of columns" if kind == "dot product" else kind


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
    own = parser.parse_args(typed)
    found, ids = prepare(own)
    text = {
        "prompt" if own.text is None else own.text: hashlib.sha256(
            np.asarray(ids, "<i8").tobytes()
        ).hexdigest()
    }
    started = results.collect(command=[Path(__file__).name, *typed], config=vars(own), data=text)
    seen = []
    figures: dict[str, Any] = {"models": [], "tokens": len(ids)}
    for name, model in found.items():
        loaded = inspected_models.as_own(model.load())
        seen.append(each := SeenModel(name, loaded.config.num_attention_heads))
        with used_at(loaded, len(ids)):
            inspection.inspect(loaded, torch.tensor(ids), own.layers, each.keep)
        if not all(
            np.isfinite(np.tril(shown)).all()
            for shown in (*each.weights.values(), *each.positions.values())
        ):
            raise UserError(inspected_models.not_finite(each.name))
        positions = each.unit if each.positions else f"none: {inspected_models.NO_POSITIONS}"
        figures["models"].append(
            {"name": each.name, "model": model.about(), "positions": positions}
        )
        if not each.positions:
            print(f"{each.name}: no map of positions: {inspected_models.NO_POSITIONS}")

    kinds = {}
    if seen[0].positions:
        maps = position_maps(seen[0], own.heads)
        kinds["positions.png"] = MapKind(f"positions: {seen[0].name}", seen[0].unit, maps)
    attention = attention_maps(seen[0].weights, own.heads)
    unit = "attention weight (colour: its root)"
    kinds["attention.png"] = MapKind(f"attention: {seen[0].name}", unit, attention, rooted=True)
    if len(seen) > 1:
        difference = {
            layer: weights_HTT - seen[1].weights[layer]
            for layer, weights_HTT in seen[0].weights.items()
        }
        # mean over heads and queries
        distances = {
            layer: float(np.abs(each).sum(axis=-1).mean()) for layer, each in difference.items()
        }
        figures["attention_l1_between_models"] = distances
        title = f"attention: {seen[0].name} minus {seen[1].name}"
        unit = "difference of attention weights (colour: its root)"
        kinds["difference.png"] = MapKind(
            title, unit, attention_maps(difference, own.heads), signed=True, rooted=True
        )
    folder = Path(own.output)
    for file in ("positions.png", "attention.png", "difference.png"):
        if file in kinds:
            draw(kinds[file], folder / file)
        else:
            (folder / file).unlink(missing_ok=True)
    results.save(started.finish(figures), folder / f"{NAME}.json")
    for what, total in inspected_models.sizes(next(iter(found.values()))).items():
        print(
            f"{what} shown: {', '.join(map(str, vars(own)[what]))} of {total}; --{what} names others"
        )
    print(f"written to {folder}: {', '.join(kinds)}, {NAME}.json", flush=True)
    return 0


def prepare(own: argparse.Namespace) -> tuple[dict[str, FoundModel], list[int]]:
    """Return the models by name, not loaded yet, and the text's token ids; complete the layers and heads."""
    field_name, text = ("--text", own.text) if own.prompt is None else ("--prompt", own.prompt)
    problems = check_folder("--output", own.output)
    if own.text is None and not storage.is_utf8(text):
        problems.append(
            Problem("--prompt", storage.shown(text), "is not UTF-8", "write it in UTF-8")
        )
    if own.text is not None:
        try:
            text = Path(own.text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            problems.append(
                Problem(
                    "--text", own.text, f"cannot be read ({error})", "name a file of UTF-8 text"
                )
            )
    found: dict[str, FoundModel] = {}
    with collecting(problems):
        found = inspected_models.find(
            [own.model] + ([] if own.against is None else [own.against]), own
        )
    sizes = [inspected_models.sizes(model) for model in found.values()]
    for what in ("layers", "heads"):
        problems += inspected_models.check_numbers(what, vars(own)[what], found)
    if any(other != sizes[0] for other in sizes):
        wrong = f"it has {sizes[1]}, the other {sizes[0]}"
        problems.append(Problem("--against", own.against, wrong, "compare models of one size"))
    raise_if_any(problems)
    for what, most in (("layers", LAYERS), ("heads", HEADS)):
        # evenly spaced numbers from 1, with the first and the last
        count = sizes[0][what]
        spread = [
            1 + round(place)
            for place in (range(count) if count <= most else np.linspace(0, count - 1, most))
        ]
        vars(own)[what] = sorted(set(vars(own)[what] or spread))

    read = [prompt_ids(text, model.tokenizer())[: own.tokens] for model in found.values()]
    ids: list[int] = read[0]
    if len(ids) < 2:
        raise UserError(
            Problem(
                field_name,
                own.text or text,
                f"{len(ids)} tokens",
                "give a text of 2 tokens or more",
            )
        )
    if any(other != ids for other in read):
        wrong = "its tokenizer splits the text in another way"
        raise UserError(
            Problem("--against", own.against, wrong, "compare models that share a tokenizer")
        )
    if len(ids) > MOST_TOKENS:
        wrong = f"more than {MOST_TOKENS:,} tokens cannot be distinguished in a picture"
        problems.append(Problem("--tokens", own.tokens, wrong, "show fewer"))
    raise_if_any(problems)
    return found, ids


def position_maps(seen: SeenModel, heads: Sequence[int]) -> dict[tuple[str, str], np.ndarray]:
    """Return for each layer the states that the chosen heads read; one for all, if they share it."""
    maps = {}
    most = max(len(states) for states in seen.positions.values())
    share = seen.heads // most  # query heads that share a state
    for layer, states in seen.positions.items():
        for state in sorted({(head - 1) // share for head in heads}):
            if share > 1:
                name = f"heads {state * share + 1} to {(state + 1) * share}"
            else:
                name = f"head {state + 1}"
            maps[f"layer {layer}", "all heads" if most == 1 else name] = states[
                min(state, len(states) - 1)
            ]
    return maps


def attention_maps(
    weights: Mapping[int, np.ndarray], heads: Sequence[int]
) -> dict[tuple[str, str], np.ndarray]:
    """Return for each layer the mean over all heads, and the chosen heads."""
    maps = {}
    for number, weights_HTT in weights.items():
        maps[f"layer {number}", "mean"] = weights_HTT.mean(axis=0, dtype=np.float32)
        maps |= {(f"layer {number}", f"head {head}"): weights_HTT[head - 1] for head in heads}
    return maps


def draw(kind: MapKind, path: Path) -> None:
    """Draw a row of panels for each head and a column for each layer, with one scale of colours."""
    layers, heads = (list(dict.fromkeys(names)) for names in zip(*kind.maps, strict=True))
    figure = Figure(figsize=(1.6 + 1.9 * len(layers), 0.9 + 1.9 * len(heads)), layout="constrained")
    panels = figure.subplots(len(heads), len(layers), squeeze=False, sharex=True, sharey=True)
    low, high = kind.limits()
    norm = Normalize(low, high)
    if kind.rooted:
        root = lambda x: np.sign(x) * np.sqrt(np.abs(x))  # noqa: E731
        norm = FuncNorm((root, lambda x: np.sign(x) * np.square(x)), vmin=low, vmax=high)
    for row, head in enumerate(heads):
        for column, layer in enumerate(layers):
            axes = panels[row][column]
            values_TT = kind.maps[layer, head].astype(np.float32)
            # blank after the query
            values_TT = np.where(np.tri(len(values_TT), dtype=bool), values_TT, np.nan)
            last = len(values_TT) + 0.5  # tokens are counted from 1
            image = axes.imshow(
                values_TT,
                cmap=APART if kind.signed else EVEN,
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
    bar = figure.colorbar(
        image, ax=panels, label=kind.unit, extend="both" if kind.signed else "neither"
    )
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    storage.write_file(path, lambda part: figure.savefig(part, dpi=DPI, format="png"))


if __name__ == "__main__":
    sys.exit(main())
