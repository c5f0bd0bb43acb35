"""Where a model holds tokens to stand and what it attends to, layer by layer and head by head: TAPE's Figure 7.

    python -m tools.visualise smollm2 --prompt "The quick brown fox jumps over the lazy dog, and the dog sleeps on."
    python -m tools.visualise runs/encodings/tape --against runs/encodings/rope --text README.md
    python -m tools.visualise TAPE=runs/one --against RoPE=runs/two --text book.txt --tokens 200 --layers 1 4 8

Three quantities for each query and each key before it, on the first ``--tokens`` of the text: the dot product of the
position states as each layer reads them (or the bias on scores, where an encoding has that), the attention weight, and
with ``--against`` the difference of the two models' weights. A MODEL is as for ``tools/stability.py``; two of them must
have the same tokens, layers and heads. Layer and head 1 are the first; "mean" is over heads.

Written to ``--output`` (``runs/visualise``): ``positions.png``, ``attention.png``, ``difference.png`` (a column for
each layer, a row for each head; the first two are MODEL's) and ``visualise.json``. Pictures of an earlier command in
that folder are deleted.

Exit codes: 0 done; 2 something to mend.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_ds import results, storage
from tape_ds.arguments import Parser, length
from tape_ds.data.prompting import prompt_ids
from tape_ds.errors import Problem, UserError, check_folder, collecting, command, raise_if_any
from tape_ds.scoring import inspected, maps
from tape_ds.scoring.maps import Map, MapKind

if TYPE_CHECKING:
    from tape_ds.scoring.inspection import LayerView
    from tape_ds.scoring.models import FoundModel

NAME = "visualise"
PICTURES = ("positions.png", "attention.png", "difference.png")
LAYERS, HEADS = 8, 2
"""How many are shown by default, besides the mean over heads."""
MOST_TOKENS = 1024
"""A map is about 200 pixels wide."""
PAIRS = "dot product / pairs of columns"


@dataclass
class Seen:
    """What one model computed."""

    name: str
    heads: int
    """H."""
    weights: dict[int, np.ndarray] = field(default_factory=dict)
    """Layer -> [H, T, T]."""
    positions: dict[int, np.ndarray] = field(default_factory=dict)
    """Layer -> [1, T, T], [G, T, T] or [H, T, T]; empty where no layer knows positions."""
    unit: str = ""
    """What a number of ``positions`` is."""

    def keep(self, view: LayerView) -> None:
        """Keep a layer, in fp32."""
        self.weights[view.number] = view.weights_HTS.float().cpu().numpy()
        if view.positions is not None:
            self.positions[view.number] = view.positions.matrix().float().cpu().numpy()
            self.unit = PAIRS if view.positions.kind == "dot product" else view.positions.kind


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then look, then write."""
    given = sys.argv[1:] if argv is None else argv
    own = parse(given)
    found, ids = prepare(own)
    first = next(iter(found.values()))
    text = {"prompt" if own.text is None else own.text: hashlib.sha256(np.asarray(ids, "<i8").tobytes()).hexdigest()}
    started = results.collect(command=[Path(__file__).name, *given], config=vars(own), data=text)
    seen = [look(name, model, ids, own.layers) for name, model in found.items()]
    for each in seen:
        if not all(np.isfinite(np.tril(shown)).all() for shown in (*each.weights.values(), *each.positions.values())):
            raise UserError(inspected.not_finite(each.name))
    kinds = kinds_of(seen[0], own.heads)
    figures: dict[str, Any] = {"models": [], "tokens": len(ids)}
    for each in seen:
        positions = each.unit if each.positions else f"none: {inspected.NOWHERE}"
        figures["models"].append({"name": each.name, "model": found[each.name].about(), "positions": positions})
        if not each.positions:
            print(f"{each.name}: no map of positions: {inspected.NOWHERE}")
    if len(seen) > 1:
        kind, figures["attention_l1_between_models"] = difference(seen[0], seen[1], own.heads)
        kinds.append(kind)
    folder = Path(own.output)
    drawn = write(kinds, folder)
    results.save(started.finish(figures), folder / f"{NAME}.json")
    for what in ("layers", "heads"):
        shown = ", ".join(map(str, vars(own)[what]))
        print(f"{what} shown: {shown} of {inspected.count(first, what)}; --{what} names others")
    print(f"written to {folder}: {', '.join(drawn)}, {NAME}.json", flush=True)
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the command line."""
    parser = Parser(prog=f"python -m tools.{NAME}", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="MODEL or NAME=MODEL")
    parser.add_argument("--against", metavar="OTHER", help="a second one; differences are MODEL minus OTHER")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", metavar="FILE", help="UTF-8; its beginning is shown")
    source.add_argument("--prompt", metavar="TEXT", help="the text itself")
    parser.add_argument("--tokens", type=length, default=96, help="at most (default: %(default)s)")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help=f"default: {LAYERS}, evenly spaced")
    parser.add_argument("--heads", type=int, nargs="+", metavar="N", help="default: the first and the last")
    inspected.add(parser)
    parser.add_argument("--output", default=f"runs/{NAME}", help="folder of the pictures (default: %(default)s)")
    return parser.parse_args(argv)


def prepare(own: argparse.Namespace) -> tuple[dict[str, FoundModel], list[int]]:
    """Return the models by name, none loaded, and the text's token ids; fills in which layers and heads are shown.

    Raises:
        UserError: everything wrong with the command line.
    """
    field_name, text = ("--text", own.text) if own.prompt is None else ("--prompt", own.prompt)
    problems = check_folder("--output", own.output)
    if own.text is None and not storage.is_utf8(text):
        problems.append(Problem("--prompt", storage.shown(text), "is not UTF-8", "write it in UTF-8"))
    if own.text is not None:
        try:
            text = Path(own.text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            problems.append(Problem("--text", own.text, f"cannot be read ({error})", "name a file of UTF-8 text"))
    found: dict[str, FoundModel] = {}
    with collecting(problems):
        found = inspected.find([own.model] + ([] if own.against is None else [own.against]), own)
    problems += [each for what in ("layers", "heads") for each in inspected.check_numbers(what, vars(own)[what], found)]
    sizes = [(inspected.count(model, "layers"), inspected.count(model, "heads")) for model in found.values()]
    if len(set(sizes)) > 1:
        wrong = "layers and heads are {} x {}, of the other {} x {}".format(*sizes[1], *sizes[0])
        problems.append(Problem("--against", own.against, wrong, "compare models of one size"))
    raise_if_any(problems)
    layers, heads = ([*range(1, count + 1)] for count in sizes[0])
    own.layers = sorted(set(own.layers or maps.some(layers, LAYERS)))
    own.heads = sorted(set(own.heads or maps.some(heads, HEADS)))
    read = [prompt_ids(text, model.tokenizer())[: own.tokens] for model in found.values()]
    ids: list[int] = read[0]
    if len(ids) < 2:
        raise UserError(Problem(field_name, own.text or text, f"{len(ids)} tokens", "give a text of 2 tokens or more"))
    if any(other != ids for other in read):
        wrong = "its tokenizer splits the text in another way"
        raise UserError(Problem("--against", own.against, wrong, "compare models that share a tokenizer"))
    for name, model in found.items():
        problems += inspected.check_ids(field_name, max(ids), name, model)
    if len(ids) > MOST_TOKENS:
        wrong = f"more than {MOST_TOKENS:,} tokens cannot be told apart in a picture"
        problems.append(Problem("--tokens", own.tokens, wrong, "show fewer"))
    raise_if_any(problems)
    return found, ids


def look(name: str, found: FoundModel, ids: Sequence[int], layers: Sequence[int]) -> Seen:
    """Return one forward of one model."""
    import torch

    from tape_ds.scoring import inspection
    from tape_ds.scoring.models import used_at

    model = inspection.as_own(found.load())
    seen = Seen(name, model.config.num_attention_heads)
    with used_at(model, len(ids)):
        inspection.inspect(model, torch.tensor(ids), layers, seen.keep)
    return seen


def kinds_of(seen: Seen, heads: Sequence[int]) -> list[MapKind]:
    """Positions, where there are any, and attention of one model."""
    found = [MapKind(f"positions: {seen.name}", seen.unit, position_maps(seen, heads))] if seen.positions else []
    attention = attention_maps(seen.weights, heads)
    return [*found, MapKind(f"attention: {seen.name}", "attention weight (colour: its root)", attention, rooted=True)]


def position_maps(seen: Seen, heads: Sequence[int]) -> list[Map]:
    """Of each layer's distinct states: what is the same for all heads, or in all layers, is one map."""
    first = next(iter(seen.positions.values()))
    same = len(seen.positions) > 1 and all(np.array_equal(first, each) for each in seen.positions.values())
    layers = {"every layer": first} if same else {f"layer {number}": each for number, each in seen.positions.items()}
    most = max(len(states) for states in layers.values())
    if most == 1:
        return [Map(layer, "all heads", states[0]) for layer, states in layers.items()]
    share = seen.heads // most
    wanted = sorted({(head - 1) // share for head in heads})
    named = {at: f"heads {at * share + 1} to {(at + 1) * share}" if share > 1 else f"head {at + 1}" for at in wanted}
    return [
        Map(layer, named[state], states[state if len(states) > 1 else 0])
        for layer, states in layers.items()
        for state in wanted
    ]


def attention_maps(weights: Mapping[int, np.ndarray], heads: Sequence[int]) -> list[Map]:
    """Return each layer's mean over all heads, and the chosen heads."""
    found = []
    for number, each_HTT in weights.items():
        found.append(Map(f"layer {number}", "mean", each_HTT.mean(axis=0, dtype=np.float32)))
        found += [Map(f"layer {number}", f"head {head}", each_HTT[head - 1]) for head in heads]
    return found


def difference(one: Seen, other: Seen, heads: Sequence[int]) -> tuple[MapKind, dict[int, float]]:
    """Weights of one model minus the other's; and of each layer the L1 distance between a query's weights, mean over
    heads and queries."""
    apart = {number: weights_HTT - other.weights[number] for number, weights_HTT in one.weights.items()}
    unit = "difference of attention weights (colour: its root)"
    title = f"attention: {one.name} minus {other.name}"
    kind = MapKind(title, unit, attention_maps(apart, heads), signed=True, rooted=True)
    return kind, {number: float(np.abs(each_HTT).sum(axis=-1).mean()) for number, each_HTT in apart.items()}


def write(kinds: Sequence[MapKind], folder: Path) -> list[str]:
    """Draw the first model's maps and the difference; delete other pictures, which are of an earlier command."""
    from tape_ds.scoring import map_figures

    drawn: dict[str, MapKind] = {}
    for each in kinds:
        drawn.setdefault(f"{'difference' if each.signed else each.name.partition(':')[0]}.png", each)
    for file in PICTURES:
        if file in drawn:
            map_figures.draw(drawn[file], folder / file)
        else:
            (folder / file).unlink(missing_ok=True)
    return list(drawn)


if __name__ == "__main__":
    sys.exit(main())
