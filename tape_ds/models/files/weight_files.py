"""Check and read files of weights without running anything in them.

Weights are safetensors, whose header is checked against the file before a tensor is read: an empty file, a truncated
one, or a header with wrong sizes is refused at once. Published models that have torch's own files alone are read with
``weights_only``, so that a pickle that would call something is refused as well.

Imports neither torch nor transformers: recipes run the checks before anything else.
"""

import functools
import hashlib
import json
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from safetensors import SafetensorError, safe_open

from tape_ds import paths, storage
from tape_ds.errors import Problem, UserError, collecting, raise_if_any
from tape_ds.models.files import json_file, library_errors
from tape_ds.models.files.library_errors import READ_AGAIN, TENSORS_ALONE

if TYPE_CHECKING:
    from torch import Tensor

WHOLE = "model.safetensors"
PICKLED = "pytorch_model.bin"
# how a pickle of any protocol since 2 begins: torch's older format
_PICKLE = b"\x80"
ADAPTER = "adapter_model.safetensors"
PICKLED_ADAPTER = "adapter_model.bin"
ADAPTER_CONFIG = "adapter_config.json"
"""peft's names."""
GENERATION = "generation_config.json"
_NOT_TORCH = "is no file that torch saved, or cannot be opened"
_WHOLE_FOLDER = "give the whole folder, as it was published or saved"
_DTYPES = ("F64", "F32", "BF16", "F16")


def read(file: Path, field: str = "model") -> dict[str, "Tensor"]:
    """Return the tensors of a safetensors file, or of one of torch's own, mapped into memory if its format allows."""
    import torch
    from safetensors.torch import load_file

    if file.suffix == ".safetensors":
        raise_if_any(check_file(file, field))
        return load_file(file)
    with library_errors.as_message("could not be read", field, str(file), READ_AGAIN):
        # torch's older format cannot be mapped
        mapped = zipfile.is_zipfile(file)
        tensors: dict[str, Tensor] = torch.load(
            file, map_location="cpu", weights_only=True, mmap=mapped
        )
    if not isinstance(tensors, dict) or not all(
        isinstance(tensor, torch.Tensor) for tensor in tensors.values()
    ):
        wrong = "could not be read: it holds something else than tensors by their names"
        raise UserError(Problem(field, str(file), wrong, TENSORS_ALONE))
    return tensors


def check_file(file: Path, field: str = "model") -> list[Problem]:
    """Check a safetensors file's header and size; no tensor is read."""
    try:
        if _headers_of(file):
            return []
        return [Problem(field, str(file), "holds no tensor", READ_AGAIN)]
    except (SafetensorError, OSError) as error:
        return [
            Problem(
                field,
                str(file),
                f"could not be read as safetensors ({library_errors.words(error)})",
                READ_AGAIN,
            )
        ]


def check_folder(folder: str | Path, field: str = "model") -> list[Problem]:
    """Check every file of weights in a folder (torch's own files only if they would be read); a path that is no folder
    has no problems."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    if unfit := paths.check_fetched(field, folder):
        return unfit
    if found := [*check_alone(folder, field), *_check_generation(folder, field)]:
        return found
    safe = sorted(folder.glob("*.safetensors"))
    pickled = sorted(folder.glob("pytorch_model*.bin"))
    whole, there = (WHOLE, safe) if safe else (PICKLED, pickled)

    index = folder / f"{whole}.index.json"
    problems: list[Problem] = []
    shards: list[str] = []
    with collecting(problems):
        shards = sorted(set(places(folder, whole, field).values()))
    missing = []
    for name in shards:
        # an index must not name files elsewhere
        if Path(name).name != name:
            wrong = f"the shard {name!r} that it names is not a file of this folder"
            problems.append(Problem(field, str(index), wrong, _WHOLE_FOLDER))
        elif not (folder / name).is_file():
            missing.append(name)
    if missing:
        problems.append(
            Problem(field, str(index), f"weights are missing: {', '.join(missing)}", _WHOLE_FOLDER)
        )
    if not (there or problems):
        return [
            Problem(
                field, str(folder), "no weights in it", f"give a folder with {WHOLE}, or its shards"
            )
        ]

    for file in there:
        if safe:
            problems += check_file(file, field)
        elif not _is_torch_file(file):
            problems.append(Problem(field, str(file), _NOT_TORCH, READ_AGAIN))
    if not (problems or files(folder)):
        wrong = f"there is neither {whole} nor {whole}.index.json, only {', '.join(file.name for file in there[:3])}"
        problems = [Problem(field, str(folder), wrong, _WHOLE_FOLDER)]
    return problems


def check_alone(folder: Path, field: str = "model") -> list[Problem]:
    """Refuse an adapter beside whole weights: they are either its base or what it was merged into, and loaders disagree
    on whether it is put on."""
    wholes = [name for whole in (WHOLE, PICKLED) for name in (whole, f"{whole}.index.json")]
    if not (folder / ADAPTER_CONFIG).is_file() or not any(
        (folder / name).is_file() for name in wholes
    ):
        return []
    wrong = f"it holds a whole model's weights and an adapter ({ADAPTER_CONFIG}): either may be what is meant"
    remedy = "if the adapter was merged into them (merge_and_unload), move adapter_config.json and adapter_model.* to "
    remedy += (
        "another folder; if not, give the adapter's files a folder of their own, and give that"
    )
    return [Problem(field, str(folder), wrong, remedy)]


def _check_generation(folder: Path, field: str) -> list[Problem]:
    """Check the settings of generation, of which transformers silently takes none if the file is damaged."""
    problems: list[Problem] = []
    if (folder / GENERATION).is_file():
        with collecting(problems):
            json_file.read(folder / GENERATION, field, str(folder))
    return problems


def places(folder: Path, whole: str, field: str = "model") -> dict[str, str]:
    """Return tensor -> shard from a folder's index; empty without an index, or with a whole file, which is read. Raises
    UserError for an index that is damaged."""
    index = folder / f"{whole}.index.json"
    if not index.is_file() or (folder / whole).is_file():
        return {}
    shards = json_file.read(index, field, str(index)).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        wrong = "has no weight_map, which names the file of each tensor"
        raise UserError(Problem(field, str(index), wrong, READ_AGAIN))
    return shards


def files(folder: str | Path) -> list[Path]:
    """Return the files of weights that ``from_pretrained`` reads in a folder; torch's own if there are no others."""
    for whole in (WHOLE, PICKLED):
        names = sorted(set(places(Path(folder), whole).values())) or [whole]
        if present := [Path(folder) / name for name in names if (Path(folder) / name).is_file()]:
            return present
    return []


def fingerprint(file: Path) -> str:
    """Return a file's size and a digest of its first and last MiB."""
    size = file.stat().st_size
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        digest.update(opened.read(2**20))
        opened.seek(max(0, size - 2**20), os.SEEK_SET)
        digest.update(opened.read(2**20))
    return f"{storage.size(size)}, {digest.hexdigest()[:16]}"


def is_adapter(folder: str | Path) -> bool:
    """Return whether a folder is an adapter that peft saved."""
    return (Path(folder) / ADAPTER_CONFIG).is_file()


def adapter_files(folder: Path) -> list[Path]:
    """Return the file of weights in an adapter's folder: safetensors, if it has both, as peft reads it."""
    return [folder / name for name in (ADAPTER, PICKLED_ADAPTER) if (folder / name).is_file()][:1]


def check_adapter(folder: str | Path, field: str = "model") -> list[Problem]:
    """Check peft's two files in a folder: weights as :func:`check_file` does, and a configuration that must not name a
    module to import, as one with Megatron's layers does."""
    folder = Path(folder)
    file = folder / ADAPTER
    pickled = folder / PICKLED_ADAPTER
    if file.is_file():
        problems = check_file(file, field)
    elif pickled.is_file():
        problems = (
            []
            if _is_torch_file(pickled)
            else [Problem(field, str(pickled), _NOT_TORCH, READ_AGAIN)]
        )
    else:
        problems = [
            Problem(
                field,
                str(folder),
                f"there is no {ADAPTER} in it",
                "give the whole folder of the adapter",
            )
        ]
    config = folder / ADAPTER_CONFIG
    code = None
    with collecting(problems):
        code = json_file.read(config, field, str(config)).get("megatron_config")
    if code:
        wrong = "its megatron_config has a module imported that it names"
        problems.append(
            Problem(
                field, str(config), wrong, "save the adapter from a model without Megatron's layers"
            )
        )
    return problems


def _is_torch_file(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(1) == _PICKLE or zipfile.is_zipfile(opened)
    except OSError:  # such as a link into the hub's cache whose target is gone
        return False


class Header(NamedTuple):
    """Shape and dtype of a tensor in a safetensors file."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors names it: ``F32``, ``BF16``, ``I8``."""

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype == "BF16" or self.dtype[0] not in "IUB"


def headers(folder: str | Path) -> dict[str, Header]:
    """Return every tensor of a folder's safetensors files, by name; no tensor is read. Torch's own files have no
    headers, and give nothing."""
    found = {}
    for file in files(folder):
        found.update(headers_of(file))
    return found


def headers_of(file: Path) -> dict[str, Header]:
    """Return every tensor of one file; nothing for another kind of file. Raises UserError for one that is damaged."""
    if file.suffix != ".safetensors":
        return {}
    raise_if_any(check_file(file))
    return dict(_headers_of(file))


def beginnings_of(file: Path) -> Mapping[str, int]:
    """Return the place in a whole safetensors file at which the bytes of each tensor begin; they have no gaps."""
    return _header_of(file).beginnings


def _headers_of(file: Path) -> Mapping[str, Header]:
    """Return every tensor of a safetensors file that is whole. Raises SafetensorError and OSError."""
    return _header_of(file).tensors


class _FileHeader(NamedTuple):
    tensors: Mapping[str, Header]
    beginnings: Mapping[str, int]


def _header_of(file: Path) -> _FileHeader:
    now = file.stat()
    return _read_header(file, (now.st_ino, now.st_size, now.st_mtime_ns))


@functools.lru_cache(maxsize=256)
def _read_header(file: Path, version: tuple[int, ...]) -> _FileHeader:
    """Read a file's header, once for each ``version`` of it: a folder is checked, asked for its sizes and its dtype,
    and then it is loaded."""
    # compares the header with the file
    with safe_open(file, framework="np"):
        pass
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        entries = json.loads(opened.read(length))
    entries.pop("__metadata__", None)
    tensors = {
        name: Header(tuple(entry["shape"]), entry["dtype"]) for name, entry in entries.items()
    }
    first = 8 + length
    beginnings = {name: first + entry["data_offsets"][0] for name, entry in entries.items()}
    return _FileHeader(tensors, beginnings)


def stored_dtype(folder: str | Path) -> str | None:
    """Return the dtype of most numbers of a folder's weights, as safetensors names it; None without headers, or where
    most are integers, as of quantised weights."""
    numbers: dict[str, int] = {}
    for tensor in headers(folder).values():
        numbers[tensor.dtype] = numbers.get(tensor.dtype, 0) + tensor.numbers
    most = max(numbers, key=lambda dtype: numbers[dtype], default=None)
    if most in _DTYPES:
        return most
    return None
