"""Models that are inspected layer by layer: several on one command line, each ``MODEL`` or ``NAME=MODEL``.

Everything that ``tape-ds evaluate`` takes, if this project computes models of the family: a plain Llama is read into
this project's own model, which computes the same logits.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from tape_ds import encodings, storage
from tape_ds.arguments import add_model, named
from tape_ds.errors import Problem, collecting, raise_if_any
from tape_ds.models.files import config_file
from tape_ds.models.files.exact import fill
from tape_ds.models.llama import TapeForCausalLM
from tape_ds.models.loading import extendable
from tape_ds.scoring import inspection, models
from tape_ds.scoring.models import FoundModel

NO_POSITIONS = (
    "no layer rotates queries and keys or adds a bias to their scores: positions enter with the embeddings, in "
    "additional columns of the keys, or not at all"
)
"""Reason for a model without a map of positions."""
DTYPES = ("float32", "float64", "bfloat16")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype", default=DTYPES[0], choices=DTYPES, help="of the weights (default: %(default)s)"
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, ...; auto: a GPU if there is one"
    )


def find(typed_models: Sequence[str], options: argparse.Namespace) -> dict[str, FoundModel]:
    """Return the models by name, not loaded yet."""
    parser = argparse.ArgumentParser()
    add_model(parser)
    problems: list[Problem] = []
    by_name: dict[str, FoundModel] = {}
    for typed in typed_models:
        name, name_or_path = named(typed)
        if name is None:
            name = typed
            # of a folder its own name, not the way to it
            if Path(typed).exists():
                name = Path(typed).resolve().name
        reason = ""
        if name in by_name:
            reason = f"a second {name!r}"
        elif not storage.is_utf8(typed):
            reason = "is not UTF-8"
        if reason:
            remedy = "give it a name: NAME=MODEL"
            problems.append(Problem("MODEL", storage.shown(typed), reason, remedy))
            continue
        with collecting(problems):
            own = parser.parse_args([name_or_path])
            own.dtype = options.dtype
            own.device = options.device
            by_name[name] = models.find(own)
            problems += inspection.check(by_name[name].config)
    # all share those of the environment
    raise_if_any(list({str(problem): problem for problem in problems}.values()))
    return by_name


def as_own(model: PreTrainedModel) -> extendable.Model:
    """Return the same weights in this project's model, whose blocks can be inspected."""
    if isinstance(model, TapeForCausalLM):
        return model
    if extendable.by_own_class(model.config):
        raise_if_any(config_file.check_llama_shaped(model.config))
    # the backend that returns weights is this project's own
    config = extendable.configure(model.config)
    with torch.device("meta"):
        empty = TapeForCausalLM(encodings.plain(config, config.rope_parameters))
    filled: extendable.Model = fill(empty, model.state_dict(), model.config.model_type)
    return filled


def sizes(model: FoundModel) -> dict[str, int]:
    return {"layers": model.config.num_hidden_layers, "heads": model.config.num_attention_heads}


def check_numbers(
    what: str, numbers: Sequence[int] | None, found: Mapping[str, FoundModel]
) -> list[Problem]:
    """Return a problem for each number of a layer or head, from 1, that a model does not have."""
    problems = []
    for name, model in found.items():
        most = sizes(model)[what]
        for number in numbers or ():
            if not 1 <= number <= most:
                reason = f"{name} has {what} 1 to {most}"
                problems.append(Problem(f"--{what}", number, reason, "name one of them"))
    return problems


def not_finite(name: str) -> Problem:
    return Problem(
        "MODEL", name, "its activations are not finite", "give a model whose loss is finite"
    )
