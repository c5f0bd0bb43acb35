"""Check and read files of weights without running anything in them; problems name the file.

Weights are safetensors, whose header is held to the file before a tensor is read: an empty file, one that was cut, or a
header that lies about sizes is refused at once. Published models that have torch's own files alone are read with
``weights_only``, so that a pickle that would call something is refused as well.

The checks import no torch: recipes run them before anything else.
"""

import contextlib
import hashlib
import json
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from tape_ds import paths, storage
from tape_ds.errors import Problem, UserError, raise_if_any

if TYPE_CHECKING:
    from torch import Tensor

WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
_PICKLE = b"\x80"  # how a pickle of any protocol since 2 begins: torch's older format
ADAPTER, PICKLED_ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_model.bin", "adapter_config.json"
"""peft's names."""
_NOT_TORCH = "is no file that torch saved, or cannot be opened"
REMEDY = "fetch or copy the file again, or take it from an earlier checkpoint"
_WHOLE_FOLDER = "give the whole folder, as it was published or saved"
_TENSORS_ALONE = "give safetensors, or a file that holds tensors alone"


def read(file: Path, field: str = "model") -> dict[str, "Tensor"]:
    from safetensors.torch import load_file

    raise_if_any(check_file(file, field))
    return load_file(file)


def check_file(file: Path, field: str = "model") -> list[Problem]:
    """Check a safetensors file's header and size; no tensor is read."""
    try:
        with safe_open(file, framework="np") as opened:
            return [] if opened.keys() else [Problem(field, str(file), "holds no tensor", REMEDY)]
    except (SafetensorError, OSError) as error:
        return [Problem(field, str(file), f"could not be read as safetensors ({_reason(error)})", REMEDY)]


def check_folder(folder: str | Path, field: str = "model") -> list[Problem]:
    """Check every file of weights in a folder (torch's own files only where they would be read); a path that is no
    folder has no problems."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    if pointers := paths.check_fetched(field, folder):
        return pointers
    safe, pickled = sorted(folder.glob("*.safetensors")), sorted(folder.glob("pytorch_model*.bin"))
    whole, there = (WHOLE, safe) if safe else (PICKLED, pickled)
    problems = _check_index(folder, whole, field)
    if not (there or problems):
        return [Problem(field, str(folder), "no weights in it", f"give a folder with {WHOLE}, or its shards")]
    for file in there:
        if safe:
            problems += check_file(file, field)
        elif not _is_torch_file(file):
            problems.append(Problem(field, str(file), _NOT_TORCH, REMEDY))
    if not (problems or files(folder)):
        wrong = f"there is neither {whole} nor {whole}.index.json, only {', '.join(file.name for file in there[:3])}"
        problems = [Problem(field, str(folder), wrong, _WHOLE_FOLDER)]
    return problems


def _check_index(folder: Path, whole: str, field: str) -> list[Problem]:
    index = folder / f"{whole}.index.json"
    try:
        names = sorted(set(places(folder, whole).values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [Problem(field, str(index), f"could not be read ({_reason(error)})", REMEDY)]
    inside = [name for name in names if Path(name).name == name]  # an index must not name files elsewhere
    wrong = [f"the shard {name!r} that it names is not a file of this folder" for name in names if name not in inside]
    if missing := [name for name in inside if not (folder / name).is_file()]:
        wrong.append(f"weights are missing: {', '.join(missing)}")
    return [Problem(field, str(index), each, _WHOLE_FOLDER) for each in wrong]


def places(folder: Path, whole: str) -> dict[str, str]:
    """Return tensor -> shard of a folder's index; empty without a readable one."""
    index = folder / f"{whole}.index.json"
    if not index.is_file() or (folder / whole).is_file():
        return {}
    return {name: str(shard) for name, shard in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()}


def files(folder: str | Path) -> list[Path]:
    """Return the files of weights that ``from_pretrained`` reads of a folder; torch's own where there are no others."""
    for whole in (WHOLE, PICKLED):
        names = sorted(set(places(Path(folder), whole).values())) or [whole]
        if found := [Path(folder) / name for name in names if (Path(folder) / name).is_file()]:
            return found
    return []


def integers(folder: str | Path) -> set[str]:
    """Return names of the tensors in a folder's safetensors that are whole numbers or booleans."""
    found = set()
    for file in files(folder):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="np") as opened:
                kinds = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
            found |= {name for name, kind in kinds.items() if kind[0] in "IUB" and kind != "BF16"}
    return found


def fingerprint(file: Path) -> str:
    """Return a file's size and a digest of its first and last MiB."""
    size, digest = file.stat().st_size, hashlib.sha256()
    with file.open("rb") as opened:
        digest.update(opened.read(2**20))
        opened.seek(max(0, size - 2**20), os.SEEK_SET)
        digest.update(opened.read(2**20))
    return f"{storage.size(size)}, {digest.hexdigest()[:16]}"


def check_adapter(folder: str | Path, field: str = "model") -> list[Problem]:
    """Return what is wrong with peft's two files in a folder: the weights as :func:`check_file` has it, and a
    configuration that is none, or asks for code to be imported (Megatron's layers are made by a module that it
    names)."""
    folder = Path(folder)
    file, pickled = folder / ADAPTER, folder / PICKLED_ADAPTER
    if file.is_file():
        problems = check_file(file, field)
    elif pickled.is_file():
        problems = [] if _is_torch_file(pickled) else [Problem(field, str(pickled), _NOT_TORCH, REMEDY)]
    else:
        problems = [Problem(field, str(folder), f"there is no {ADAPTER} in it", "give the whole folder of the adapter")]
    config = folder / ADAPTER_CONFIG
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        code = content.get("megatron_config")
    except (OSError, ValueError, AttributeError) as error:
        return [*problems, Problem(field, str(config), f"could not be read ({_reason(error)})", REMEDY)]
    if code:
        wrong = "its megatron_config has a module imported that it names"
        problems.append(Problem(field, str(config), wrong, "save the adapter from a model without Megatron's layers"))
    return problems


def _is_torch_file(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(1) == _PICKLE or zipfile.is_zipfile(opened)
    except OSError:  # a link to what is no longer in the hub's cache, for one
        return False


def read_torch_file(file: Path, field: str = "model") -> dict[str, "Tensor"]:
    """Return the tensors of one of torch's own files, mapped into memory where its format allows."""
    import torch

    mapped = zipfile.is_zipfile(file)  # torch's older format cannot be
    with reading(file, field):
        found: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    if not isinstance(found, dict) or not all(isinstance(each, torch.Tensor) for each in found.values()):
        wrong = "could not be read: it holds something else than tensors by their names"
        raise UserError(Problem(field, str(file), wrong, _TENSORS_ALONE))
    return found


@contextlib.contextmanager
def reading(source: str | Path, field: str = "model") -> Iterator[None]:
    """Within the block ``source`` is read, by us or by a library; a file of weights that is damaged, or holds something
    to run, becomes a :class:`UserError`."""
    try:
        yield
    except pickle.UnpicklingError as error:
        wrong = f"could not be read: holds more than tensors, or is damaged: nothing in it was run ({_reason(error)})"
        raise UserError(Problem(field, str(source), wrong, _TENSORS_ALONE)) from error
    except (SafetensorError, EOFError, RuntimeError) as error:
        if type(error) is RuntimeError and "PytorchStreamReader" not in str(error):
            raise
        raise UserError(Problem(field, str(source), f"could not be read ({_reason(error)})", REMEDY)) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split("Re-running")[0].split())[:200]
