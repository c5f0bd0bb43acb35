"""Models that are looked into layer by layer: several on one command line, each ``MODEL`` or ``NAME=MODEL``.

What ``tape-ds evaluate`` finds, as long as this project computes models of its family: a plain Llama is read into
this project's own model, which gives its logits.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tape_ds import storage
from tape_ds.arguments import named
from tape_ds.errors import Problem, collecting, raise_if_any

if TYPE_CHECKING:
    from tape_ds.scoring.models import FoundModel

NOWHERE = (
    "no layer turns queries and keys as they are or adds a bias to their scores: positions enter with the embeddings, "
    "in more columns of the keys, or not at all, and there is nothing to take dot products of"
)
"""Said of a model without a map of positions."""
DTYPES = ("float32", "float64", "bfloat16")


def add(parser: argparse.ArgumentParser) -> None:
    """How models are held; which ones, a command says itself."""
    parser.add_argument("--dtype", default=DTYPES[0], choices=DTYPES, help="of the weights (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ...; auto: a GPU where there is one")


def find(names: Sequence[str], given: argparse.Namespace) -> dict[str, FoundModel]:
    """Return the models by name, none of them loaded. Read into this project's classes, none of them ends at a
    position.

    Args:
        names: as they were typed.
        given: what :func:`add` added.

    Raises:
        UserError: everything wrong with any of them.
    """
    from tape_ds.scoring import inspection, models

    problems: list[Problem] = []
    found: dict[str, FoundModel] = {}
    for typed in names:
        name, name_or_path = named(typed)
        if name is None:  # a folder is called as it is itself
            name = Path(typed).resolve().name if Path(typed).exists() else typed
        if not storage.is_utf8(typed) or name in found:
            wrong = f"a second {name!r}" if name in found else "is not UTF-8"
            problems.append(Problem("MODEL", storage.shown(typed), wrong, "give it a name: NAME=MODEL"))
            continue
        with collecting(problems):
            found[name] = models.at(name_or_path, dtype=given.dtype, device=given.device)
            problems += inspection.check(found[name].config)
    raise_if_any(list({str(each): each for each in problems}.values()))  # those of the environment are everyone's
    return found


def count(found: FoundModel, what: str) -> int:
    """Return how many ``layers`` or ``heads`` a model has."""
    number: int = getattr(found.config, {"layers": "num_hidden_layers", "heads": "num_attention_heads"}[what])
    return number


def check_numbers(what: str, asked: Sequence[int] | None, found: Mapping[str, FoundModel]) -> list[Problem]:
    """Numbers of ``layers`` or ``heads``, from 1, that a model does not have."""
    return [
        Problem(f"--{what}", number, f"{name} has {what} 1 to {count(model, what)}", "name one of them")
        for name, model in found.items()
        for number in asked or ()
        if not 1 <= number <= count(model, what)
    ]


def check_ids(field: str, largest: int, name: str, found: FoundModel) -> list[Problem]:
    """A token that a model has no embedding for."""
    size = found.config.vocab_size
    if 0 <= largest < size:
        return []
    return [Problem(field, largest, f"{name} has embeddings for tokens 0 to {size - 1}", "name another token or text")]


def not_finite(name: str) -> Problem:
    """Said of a model of which nothing can be shown."""
    return Problem("MODEL", name, "what it computes is not finite", "give a model whose loss is finite")
