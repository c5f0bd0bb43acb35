"""Read what is known of a model by its name or path, and check it and its files before anything is loaded.

Imports neither torch nor transformers, but for a family that transformers' own class computes. One file of a hub id is
read, and only for a dry run or a plan: a run asks the hub anyway.
"""

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tape_ds import paths, run_folder
from tape_ds.errors import Problem, UserError, collecting, raise_if_any
from tape_ds.models.files import gguf_header, hub, json_file, weight_files
from tape_ds.models.files.config_file import (
    SMOLLM2,
    SMOLLM2_LENGTH,
    check_name,
    find,
    has_tokenizer,
    is_on_hub,
    other_family,
)
from tape_ds.models.files.hub import CONFIG

_UNREADABLE = (OSError, ValueError, RecursionError)
_TOKENIZER_SETTINGS = ("tokenizer.json", "tokenizer_config.json")


def known(name: str, *, online: bool, refuse: bool = False) -> Mapping[str, Any] | None:
    """Return the content of a model's ``config.json``, with transformers' defaults for families that its own classes
    compute; for :data:`SMOLLM2`, length and RoPE; for a GGUF file, what its header says. None if it is not on this
    machine, or damaged.

    ``refuse``: raise the problems of the file or its family, as :func:`check_model` does.
    """
    if name == SMOLLM2:
        return {"max_position_embeddings": SMOLLM2_LENGTH, "rope_theta": 1e5}
    if name.endswith(".gguf"):
        return _of_gguf(name, refuse)
    if (file := find(name, online=online)) is None:
        return None
    content: Mapping[str, Any] | None = None
    try:
        content = json_file.read(file, "model", name)
        if other_family(content) is None:
            return content
        return _of_its_class(file, file.stat().st_mtime_ns)
    except (UserError, *_UNREADABLE):
        if refuse:
            raise
        return content


def _of_gguf(name: str, refuse: bool) -> Mapping[str, Any] | None:
    file = paths.of(name)
    if not os.path.isfile(file):
        return None
    try:
        header = gguf_header.read(file)
        if header.architecture in gguf_header.ARCHITECTURES:
            return header.config()
        return _of_gguf_class(file, file.stat().st_mtime_ns)
    except UserError:
        if refuse:
            raise
        return None


@functools.lru_cache
def _of_gguf_class(file: Path, changed: int) -> Mapping[str, Any]:
    """Return the configuration of a GGUF file of another family; ``changed``: the file's time."""
    from tape_ds.models.loading import extendable

    config = extendable.read_gguf(file)
    raise_if_any(extendable.check(config))
    return config.to_dict()


@functools.lru_cache
def _of_its_class(file: Path, changed: int) -> Mapping[str, Any]:
    """Return the configuration of a family that transformers' own class computes; ``changed``: the file's time."""
    # transformers has the family's names for its RoPE
    from tape_ds.models.loading import extendable

    config = extendable.read(file.parent)
    raise_if_any(extendable.check(config))
    return config.to_dict()


def check_model(name: str, *, online: bool) -> list[Problem]:
    """Return a model's problems: no such model, another family, or files that are damaged or missing. ``online``:
    whether to ask the hub for the configuration of a hub id."""
    if wrong := list(check_name("model", name, (CONFIG,))):
        return wrong
    if online and is_on_hub(name) and (problem := hub.config(name).problem) is not None:
        return [problem]
    try:
        known(name, online=online, refuse=True)
    except UserError as error:
        return [replace(problem, value=name) for problem in error.problems]
    except _UNREADABLE as error:
        return [Problem("model", name, f"{CONFIG} is not readable ({error})", "repair the folder")]
    folder = paths.of(name)
    if name == SMOLLM2 or not os.path.isdir(folder):
        return []
    found = run_folder.check_whole("model", name, folder) or weight_files.check_folder(folder)
    if not has_tokenizer(folder):
        remedy = "copy the files of the tokenizer that it was trained with into the folder"
        wrong_folder = "there is no tokenizer (tokenizer.json, tokenizer.model) in this folder"
        found = [*found, Problem("model", name, wrong_folder, remedy)]
    for file in _TOKENIZER_SETTINGS:
        if (folder / file).exists():
            with collecting(found):
                json_file.read(folder / file, "model", name)
    return found
