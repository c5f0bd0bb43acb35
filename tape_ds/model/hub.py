"""Models on the Hugging Face hub: ``ORG/NAME``, or ``ORG/NAME@REV`` for a commit, tag or branch of it.

Imports neither torch nor transformers: recipes ask it before anything else.
"""

import functools
import re
from pathlib import Path

from tape_ds.errors import Problem, UserError
from tape_ds.model import weights

ID = r"(?P<name>[\w-][\w.-]*(/[\w.-]+)?)(@(?P<revision>[^:#]+))?"
"""Of a model, and of a dataset in a data spec."""
_SMALL = ("*.json", "*.model", "*.txt", "*.jinja", "*.py", "*.tiktoken")
_TRAINED = ("adapter_model.*", "trainable_params.bin", "trained.safetensors")


def split(name: str) -> tuple[str, str | None]:
    """Return name and revision of what may be an id; a revision of None is the hub's newest."""
    found = re.fullmatch(ID, name)
    return (found["name"], found["revision"]) if found else (name, None)


def is_id(name: str) -> bool:
    """Return whether ``name`` is written as the hub's names are, ``owner/name`` or ``owner/name@revision``."""
    return re.fullmatch(ID, name) is not None and "/" in split(name)[0]


def commit_of(folder: str | Path) -> str | None:
    """Return the commit of a folder in the hub's cache; None of any other folder."""
    folder = Path(folder)
    return folder.name if folder.parent.name == "snapshots" else None


def download(name: str, *, with_weights: bool = True) -> Path:
    """Return the folder of a hub id in the cache: all files of one commit, and of the weights those that are read.

    Raises:
        UserError: there is no such model, revision or network.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HTTPError

    repository, revision = split(name)
    # offline, huggingface_hub 1 else asks for the list of a commit's files
    fetch = functools.partial(snapshot_download, repository, local_files_only=constants.HF_HUB_OFFLINE)
    try:
        folder = Path(fetch(revision=revision, allow_patterns=list(_SMALL)))
        if with_weights:
            revision = commit_of(folder) or revision  # the branch may move between two questions
            for whole in (weights.WHOLE, weights.PICKLED):
                shards = {whole, *weights.places(folder, whole).values()}
                fetch(revision=revision, allow_patterns=[*_SMALL, *_TRAINED, *shards])
                if any((folder / shard).is_file() for shard in shards):
                    break
    except (OSError, ValueError, HTTPError) as error:
        reason = " ".join(str(error).split())[:300]
        remedy = "give a folder, or a hub id (owner/name, owner/name@revision) that can be reached"
        raise UserError(Problem("model", name, f"no such folder, and not reachable ({reason})", remedy)) from error
    return folder
