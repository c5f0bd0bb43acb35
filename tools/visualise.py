"""Where a model holds tokens to stand and what it attends to, layer by layer and head by head: TAPE's Figure 7.

    python -m tools.visualise smollm2 --prompt "The quick brown fox jumps over the lazy dog, and the dog sleeps on."
    python -m tools.visualise runs/encodings/tape --against runs/encodings/rope --text README.md
    python -m tools.visualise TAPE=runs/one --against RoPE=runs/two --text book.txt --tokens 200 --layers 1 4 8

Three quantities for each query and each key before it, on the first ``--tokens`` of the text: the dot product of the
position states as each layer reads them (or the bias on scores, where an encoding has that), the attention weight, and
with ``--against`` the difference of the two models' weights. A MODEL is as for ``tools/stability.py``; two of them must
have the same tokens, layers and heads. Layer and head 1 are the first; "mean" is over heads.

Written to ``--output`` (``runs/visualise``): ``positions.png``, ``attention.png``, ``difference.png`` (some layers and
heads), ``maps.html`` (all that were looked at; one file that needs nothing else) and ``visualise.json``. What an
earlier command left there under these names goes.

Exit codes: 0 done; 2 something to mend.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evaluation import inspected, options
from evaluation.pages import maps
from evaluation.pages.maps import Kind, Map
from tape_ds import results, storage
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, check_folder, command, raise_if_any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from evaluation.models import FoundModel
    from tape_ds.scoring.inspection import LayerView

NAME = "visualise"
PAGE = "maps.html"
PICTURES = ("positions.png", "attention.png", "difference.png")
LAYERS = 8
"""Of a model with more, so many are shown unless ``--layers`` says which."""
MOST_BYTES = 48 << 20
"""Of a page."""
MEAN = "mean"
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
    layers = sorted(set(own.layers or chosen_layers(first)))
    heads = sorted(set(own.heads or range(1, first.config.num_attention_heads + 1)))
    text = {"prompt" if own.text is None else own.text: hashlib.sha256(np.asarray(ids, "<i8").tobytes()).hexdigest()}
    config = {**vars(own), "layers": layers, "heads": heads}
    started = results.collect(command=[Path(__file__).name, *given], config=config, data=text)
    seen = [look(name, model, ids, layers) for name, model in found.items()]
    raise_if_any(check_finite(seen))
    kinds = [kind for each in seen for kind in kinds_of(each, heads)]
    kinds += [difference(seen[0], seen[1], heads)] if len(seen) > 1 else []
    tokens = spelled(first.tokenizer(), ids)
    folder = Path(own.output)
    figures = {"models": [about(each, found[each.name]) for each in seen], "tokens": len(ids)}
    if len(seen) > 1:
        figures["attention_l1_between_models"] = distances(seen[0], seen[1])
    write(kinds, tokens, title(found, layers), folder)
    results.save(started.finish(figures), folder / f"{NAME}.json")
    for each in seen:
        if not each.positions:
            print(f"{each.name}: no map of positions: {inspected.NOWHERE}")
    print(f"written to {folder}: {', '.join(pictures(kinds))}, {PAGE}, {NAME}.json", flush=True)
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(prog=f"python -m tools.{NAME}", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="MODEL or NAME=MODEL")
    parser.add_argument("--against", metavar="OTHER", help="a second one; differences are MODEL minus OTHER")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", metavar="FILE", help="UTF-8; its beginning is shown")
    source.add_argument("--prompt", metavar="TEXT", help="the text itself")
    parser.add_argument("--tokens", type=options.length, default=96, help="at most (default: %(default)s)")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help=f"default: {LAYERS} that lie evenly apart")
    parser.add_argument("--heads", type=int, nargs="+", metavar="N", help="default: all")
    inspected.add(parser)
    parser.add_argument("--output", default=f"runs/{NAME}", help="folder of pictures and page (default: %(default)s)")
    return parser.parse_args(argv)


def prepare(own: argparse.Namespace) -> tuple[dict[str, FoundModel], list[int]]:
    """The models by name, none loaded, and the text's token ids.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems, text = check_folder("--output", own.output), own.prompt
    if text is not None and not storage.is_utf8(text):
        problems.append(Problem("--prompt", storage.shown(text), "is not UTF-8", "write it in UTF-8"))
    if own.text is not None:
        try:
            text = Path(own.text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            problems.append(Problem("--text", own.text, f"cannot be read ({error})", "name a file of UTF-8 text"))
    addresses = [own.model] + ([] if own.against is None else [own.against])
    try:
        found = inspected.find(addresses, own)
    except UserError as error:
        raise UserError([*problems, *error.problems]) from error
    problems += inspected.check_layers(own.layers or [], found) + check_heads(own.heads or [], found)
    raise_if_any(problems + check_alike(found))
    each = {name: model.tokenizer()(text)["input_ids"][: own.tokens] for name, model in found.items()}
    raise_if_any(check_ids(each, found, own))
    ids: list[int] = next(iter(each.values()))
    return found, ids


def check_heads(heads: Sequence[int], found: Mapping[str, FoundModel]) -> list[Problem]:
    """Numbers, from 1, that a model has no head for."""
    return [
        Problem("--heads", head, f"{name} has heads 1 to {model.config.num_attention_heads}", "name one of them")
        for name, model in found.items()
        for head in heads
        if not 1 <= head <= model.config.num_attention_heads
    ]


def check_alike(found: Mapping[str, FoundModel]) -> list[Problem]:
    """Whether two models' weights can be subtracted."""
    sizes = [(model.config.num_hidden_layers, model.config.num_attention_heads) for model in found.values()]
    if len(set(sizes)) == 1:
        return []
    wrong = "layers and heads are {} x {}, of the other {} x {}".format(*sizes[1], *sizes[0])
    return [Problem("--against", list(found)[1], wrong, "compare models of one size")]


def check_ids(each: Mapping[str, list[int]], found: Mapping[str, FoundModel], own: argparse.Namespace) -> list[Problem]:
    """Whether there is something to show, the same for both models and not too much of it."""
    field_name = "--prompt" if own.text is None else "--text"
    ids = next(iter(each.values()))
    if len(ids) < 2:
        return [Problem(field_name, own.text or own.prompt, f"{len(ids)} tokens", "give a text of 2 tokens or more")]
    if any(other != ids for other in each.values()):
        wrong = "its tokenizer splits the text in another way"
        return [Problem("--against", own.against, wrong, "compare models that share a tokenizer")]
    problems = [problem for name in found for problem in inspected.check_ids(field_name, max(ids), name, found[name])]
    model = next(iter(found.values()))
    heads = len(set(own.heads)) if own.heads else model.config.num_attention_heads
    layers = len(set(own.layers or chosen_layers(model)))
    kinds = 2 * len(found) + (len(found) > 1)
    needed = maps.size(kinds * layers * (heads + 1), len(ids))
    if needed > MOST_BYTES:
        wrong = f"the page would have {needed >> 20} MiB, more than {MOST_BYTES >> 20}"
        problems.append(Problem("--tokens", own.tokens, wrong, "show fewer tokens, --layers or --heads"))
    return problems


def chosen_layers(model: FoundModel) -> list[int]:
    """All, or some that lie evenly apart."""
    numbers = [str(number) for number in range(1, model.config.num_hidden_layers + 1)]
    return [int(number) for number in maps.some(numbers, LAYERS)]


def spelled(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text in front of it; what it says alone where that changes the text, as a part of a
    letter does."""
    found, before = [], ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end])
        found.append(text[len(before) :] if text.startswith(before) else tokenizer.decode([ids[end - 1]]))
        before = text
    return found


def look(name: str, found: FoundModel, ids: Sequence[int], layers: Sequence[int]) -> Seen:
    """One forward of one model."""
    import torch

    from evaluation.models import used_at
    from tape_ds.scoring.inspection import inspect

    model = inspected.load(found)
    seen = Seen(name, model.config.num_attention_heads)
    with used_at(model, len(ids)):
        inspect(model, torch.tensor(ids), layers, seen.keep)
    return seen


def check_finite(seen: Sequence[Seen]) -> list[Problem]:
    """Whether there is something that can be drawn."""
    return [
        Problem("MODEL", each.name, "what it computes is not finite", "give a model whose loss is finite")
        for each in seen
        if not all(np.isfinite(np.tril(maps)).all() for maps in (*each.weights.values(), *each.positions.values()))
    ]


def kinds_of(seen: Seen, heads: Sequence[int]) -> list[Kind]:
    """Positions, where there are any, and attention of one model."""
    found = [Kind(f"positions: {seen.name}", seen.unit, position_maps(seen, heads))] if seen.positions else []
    attention = attention_maps(seen.weights, heads)
    return [*found, Kind(f"attention: {seen.name}", "attention weight (colour: its root)", attention, rooted=True)]


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
    return [
        Map(layer, _span(state * share + 1, (state + 1) * share), states[state if len(states) > 1 else 0])
        for layer, states in layers.items()
        for state in wanted
    ]


def _span(first: int, last: int) -> str:
    """The heads of one state."""
    return f"head {first}" if first == last else f"heads {first} to {last}"


def attention_maps(weights: Mapping[int, np.ndarray], heads: Sequence[int]) -> list[Map]:
    """Each layer's mean over all heads, and the chosen heads."""
    found = []
    for number, each_HTT in weights.items():
        found.append(Map(f"layer {number}", MEAN, each_HTT.mean(axis=0, dtype=np.float32)))
        found += [Map(f"layer {number}", f"head {head}", each_HTT[head - 1]) for head in heads]
    return found


def difference(one: Seen, other: Seen, heads: Sequence[int]) -> Kind:
    """Weights of one model minus the other's."""
    apart = {number: each - other.weights[number] for number, each in one.weights.items()}
    unit = "difference of attention weights (colour: its root)"
    title = f"attention: {one.name} minus {other.name}"
    return Kind(title, unit, attention_maps(apart, heads), signed=True, rooted=True)


def distances(one: Seen, other: Seen) -> dict[int, float]:
    """Layer -> L1 distance between the two models' weights of a query, mean over heads and queries."""
    return {
        number: float(np.abs(each - other.weights[number]).sum(axis=-1).mean()) for number, each in one.weights.items()
    }


def about(seen: Seen, found: FoundModel) -> dict[str, object]:
    """What the result says of one model."""
    positions = seen.unit if seen.positions else f"none: {inspected.NOWHERE}"
    return {"name": seen.name, "model": found.about(), "positions": positions}


def pictures(kinds: Sequence[Kind]) -> dict[str, Kind]:
    """File -> what it shows: the first model's maps, and the difference."""
    named = [("difference" if each.signed else each.name.partition(":")[0], each) for each in kinds]
    found: dict[str, Kind] = {}
    for name, each in named:
        found.setdefault(f"{name}.png", each)
    return found


def title(found: Mapping[str, FoundModel], layers: Sequence[int]) -> tuple[str, str]:
    """The models' names; and which layers were looked at, where some were not."""
    depth = next(iter(found.values())).config.num_hidden_layers
    shown = ", ".join(map(str, layers))
    some = f" Looked at: layers {shown} of {depth}; --layers names others." if len(layers) < depth else ""
    return " and ".join(found), some


def write(kinds: Sequence[Kind], tokens: Sequence[str], titles: tuple[str, str], folder: Path) -> None:
    """The pictures and the page; pictures of an earlier command, which these would be taken for, go."""
    from evaluation import map_figures

    drawn = pictures(kinds)
    for file in PICTURES:
        if file not in drawn:
            (folder / file).unlink(missing_ok=True)
    for file, kind in drawn.items():
        map_figures.draw(kind, folder / file)
    names, some = titles
    intro = f"What {names} computed of {len(tokens)} tokens: a number for each token and each one before it.{some}"
    storage.write_text(folder / PAGE, map_figures.page(kinds, tokens, f"Positions and attention: {names}", intro))


if __name__ == "__main__":
    sys.exit(main())
