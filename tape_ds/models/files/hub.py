"""Models on the Hugging Face hub: ``ORG/NAME``, or ``ORG/NAME@REV`` for a commit, tag or branch.

Imports neither torch nor transformers: recipes ask it first.
"""

import functools
import logging
import re
from pathlib import Path
from typing import NamedTuple

from tape_ds.errors import Problem, UserError
from tape_ds.models.files import weight_files

ID = r"(?P<name>[\w-][\w.-]*(/[\w.-]+)?)(@(?P<revision>[^:#]+))?"
"""Id of a model, and of a dataset in a data spec."""
CONFIG = "config.json"
SECONDS = 5.0
"""How long the hub may take to answer a question about one small file."""
_SMALL = ("*.json", "*.model", "*.txt", "*.jinja", "*.py", "*.tiktoken")
_TRAINED = ("adapter_model.*", "trainable_params.bin", "trained.safetensors")


def split(name: str) -> tuple[str, str | None]:
    """Return name and revision of a possible id; revision None: the newest."""
    found = re.fullmatch(ID, name)
    if found:
        return (found["name"], found["revision"])
    return (name, None)


def is_id(name: str) -> bool:
    return re.fullmatch(ID, name) is not None and "/" in split(name)[0]


def commit_of(folder: str | Path) -> str | None:
    """Return the commit of a folder in the hub's cache; None of any other folder."""
    folder = Path(folder)
    if folder.parent.name == "snapshots":
        return folder.name
    return None


class Fetched(NamedTuple):
    """A model's ``config.json`` in the hub's cache, or why it was not fetched."""

    file: Path | None = None
    why_not: str | None = None
    """Why it was not read, where the name may be right all the same."""
    problem: Problem | None = None
    """The problem with the name, if there is one."""


@functools.cache
def config(name: str) -> Fetched:
    """Return the ``config.json`` of an id: from the hub's cache on this machine, else from the hub."""
    from huggingface_hub import (
        errors,
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        is_offline_mode,
        try_to_load_from_cache,
    )

    repository, revision = split(name)
    # failures are reported here
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        cached = try_to_load_from_cache(repository, CONFIG, revision=revision)
        if isinstance(cached, str):
            return Fetched(Path(cached))
        if is_offline_mode():
            return Fetched(why_not="offline by HF_HUB_OFFLINE")
        # hf_hub_download alone repeats for minutes what is not answered
        get_hf_file_metadata(hf_hub_url(repository, CONFIG, revision=revision), timeout=SECONDS)
        return Fetched(
            Path(hf_hub_download(repository, CONFIG, revision=revision, etag_timeout=SECONDS))
        )
    except errors.HFValidationError as error:
        wrong = f"not a name that the hub allows ({error})"
        remedy = "give a folder, or a hub id (owner/name)"
    except errors.GatedRepoError:
        return Fetched(
            why_not="gated: accept its licence on the hub and log in, `hf auth login`, before the run"
        )
    except errors.RepositoryNotFoundError:
        wrong = "neither on the hub nor a folder here"
        remedy = "check its name (owner/name); if private: hf auth login"
    except errors.RevisionNotFoundError:
        wrong = f"the hub has no revision {revision!r} of it"
        remedy = "give a commit, tag or branch of its page"
    except errors.LocalEntryNotFoundError:  # the connection broke between the two questions
        return Fetched(why_not="offline")
    except errors.EntryNotFoundError:
        wrong = f"the hub has no {CONFIG} in it"
        remedy = "give a model that was saved by save_pretrained"
    except errors.HfHubHTTPError as error:
        return Fetched(why_not=f"the hub answers {error.response.status_code}")
    except (errors.HTTPError, OSError, ValueError) as error:
        return Fetched(
            why_not=f"offline, or the hub cannot be reached ({' '.join(str(error).split())[:200]})"
        )
    return Fetched(problem=Problem("model", name, wrong, remedy))


def download(name: str, *, with_weights: bool = True) -> Path:
    """Return the folder of an id in the cache: all files of one commit, and of the weights those that are read."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HTTPError

    repository, revision = split(name)
    # offline, huggingface_hub 1 else asks for the list of a commit's files
    fetch = functools.partial(
        snapshot_download, repository, local_files_only=constants.HF_HUB_OFFLINE
    )
    try:
        folder = Path(fetch(revision=revision, allow_patterns=list(_SMALL)))
        if with_weights:
            # the branch may move between two questions
            revision = commit_of(folder) or revision
            for whole in (weight_files.WHOLE, weight_files.PICKLED):
                shards = {whole, *weight_files.places(folder, whole).values()}
                fetch(revision=revision, allow_patterns=[*_SMALL, *_TRAINED, *shards])
                if any((folder / shard).is_file() for shard in shards):
                    break
    except UserError:  # a damaged index
        raise
    except (OSError, ValueError, HTTPError) as error:
        reason = " ".join(str(error).split())[:300]
        remedy = "give a folder, or a hub id (owner/name, owner/name@revision) that can be reached"
        raise UserError(
            Problem("model", name, f"no such folder, and not reachable ({reason})", remedy)
        ) from error
    return folder
