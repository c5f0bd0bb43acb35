"""Check and read files of weights without running anything in them, and give a model all tensors of a checkpoint.

Weights are safetensors, whose header is checked against the file before a tensor is read: an empty file, a truncated
one, or a header with wrong sizes is refused at once. Published models that have torch's own files alone are read with
``weights_only``, so that a pickle that would call something is refused as well. No tensor may be missing or left over.

Imports neither torch nor transformers: recipes run the checks before anything else.
"""

import contextlib
import hashlib
import json
import logging
import os
import pickle
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError, safe_open

from tape_ds import paths, storage
from tape_ds.errors import Problem, UserError, raise_if_any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_Model = TypeVar("_Model", bound="PreTrainedModel")

WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
_PICKLE = b"\x80"  # how a pickle of any protocol since 2 begins: torch's older format
ADAPTER, PICKLED_ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_model.bin", "adapter_config.json"
"""peft's names."""
_NOT_TORCH = "is no file that torch saved, or cannot be opened"
REMEDY = "fetch or copy the file again, or take it from an earlier checkpoint"
_WHOLE_FOLDER = "give the whole folder, as it was published or saved"
_TENSORS_ALONE = "give safetensors, or a file that holds tensors alone"
_SHOWN = 12  # names of tensors in a message


def read(file: Path, field: str = "model") -> dict[str, "Tensor"]:
    """Return the tensors of a safetensors file, or of one of torch's own, mapped into memory if its format allows."""
    import torch
    from safetensors.torch import load_file

    if file.suffix == ".safetensors":
        raise_if_any(check_file(file, field))
        return load_file(file)
    with reading(file, field):
        # torch's older format cannot be mapped
        mapped = zipfile.is_zipfile(file)
        tensors: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    if not isinstance(tensors, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        wrong = "could not be read: it holds something else than tensors by their names"
        raise UserError(Problem(field, str(file), wrong, _TENSORS_ALONE))
    return tensors


def check_file(file: Path, field: str = "model") -> list[Problem]:
    """Check a safetensors file's header and size; no tensor is read."""
    try:
        with safe_open(file, framework="np") as opened:
            return [] if opened.keys() else [Problem(field, str(file), "holds no tensor", REMEDY)]
    except (SafetensorError, OSError) as error:
        return [Problem(field, str(file), f"could not be read as safetensors ({_reason(error)})", REMEDY)]


def check_folder(folder: str | Path, field: str = "model") -> list[Problem]:
    """Check every file of weights in a folder (torch's own files only if they would be read); a path that is no folder
    has no problems."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    if pointers := paths.check_fetched(field, folder):
        return pointers
    safe, pickled = sorted(folder.glob("*.safetensors")), sorted(folder.glob("pytorch_model*.bin"))
    whole, there = (WHOLE, safe) if safe else (PICKLED, pickled)

    index = folder / f"{whole}.index.json"
    problems = []
    try:
        shards = sorted(set(places(folder, whole).values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(Problem(field, str(index), f"could not be read ({_reason(error)})", REMEDY))
        shards = []
    missing = []
    for name in shards:
        if Path(name).name != name:  # an index must not name files elsewhere
            wrong = f"the shard {name!r} that it names is not a file of this folder"
            problems.append(Problem(field, str(index), wrong, _WHOLE_FOLDER))
        elif not (folder / name).is_file():
            missing.append(name)
    if missing:
        problems.append(Problem(field, str(index), f"weights are missing: {', '.join(missing)}", _WHOLE_FOLDER))
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


def places(folder: Path, whole: str) -> dict[str, str]:
    """Return tensor -> shard from a folder's index; empty without an index, or with a whole file, which is read."""
    index = folder / f"{whole}.index.json"
    if not index.is_file() or (folder / whole).is_file():
        return {}
    return {name: str(shard) for name, shard in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()}


def files(folder: str | Path) -> list[Path]:
    """Return the files of weights that ``from_pretrained`` reads in a folder; torch's own if there are no others."""
    for whole in (WHOLE, PICKLED):
        names = sorted(set(places(Path(folder), whole).values())) or [whole]
        if present := [Path(folder) / name for name in names if (Path(folder) / name).is_file()]:
            return present
    return []


def fingerprint(file: Path) -> str:
    """Return a file's size and a digest of its first and last MiB."""
    size, digest = file.stat().st_size, hashlib.sha256()
    with file.open("rb") as opened:
        digest.update(opened.read(2**20))
        opened.seek(max(0, size - 2**20), os.SEEK_SET)
        digest.update(opened.read(2**20))
    return f"{storage.size(size)}, {digest.hexdigest()[:16]}"


def check_adapter(folder: str | Path, field: str = "model") -> list[Problem]:
    """Check peft's two files in a folder: weights as :func:`check_file` does, and a configuration that must not name a
    module to import, as one with Megatron's layers does."""
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
    except OSError:  # such as a link into the hub's cache whose target is gone
        return False


@contextlib.contextmanager
def reading(source: str | Path, field: str = "model") -> Iterator[None]:
    """Turn the errors of whatever reads ``source`` in this block, a file of weights that is damaged or holds something
    to run, into a :class:`UserError`."""
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


def load_exact(
    kind: Any,
    source: str | Path,
    required: Callable[["PreTrainedModel", Collection[str]], Iterable[str]] = lambda model, missing: missing,
    **arguments: Any,
) -> Any:
    """Return ``kind.from_pretrained(source, **arguments)`` if every tensor of the source was used. A tied head and
    computed buffers may be missing or left over, as in transformers.

    ``required``: which of the missing parameters of a model must not be missing; default: all.
    """
    raise_if_any(check_folder(source))
    log = logging.getLogger("transformers.modeling_utils")
    log.addFilter(_is_no_report)
    try:
        with reading(source):
            model, info = kind.from_pretrained(
                source, output_loading_info=True, ignore_mismatched_sizes=True, **arguments
            )
    finally:
        log.removeFilter(_is_no_report)
    mismatched = [f"{name} {list(theirs)}, not {list(ours)}" for name, theirs, ours in info["mismatched_keys"]]
    require_exact(str(source), required(model, info["missing_keys"]), info["unexpected_keys"], mismatched)

    if getattr(model.config, "quantization_config", None) is None:
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        integers = []
        for file in files(source):
            if file.suffix == ".safetensors":
                with safe_open(file, framework="np") as opened:
                    for name in parameters & set(opened.keys()):
                        dtype = opened.get_slice(name).get_dtype()
                        if dtype[0] in "IUB" and dtype != "BF16":  # integers and booleans
                            integers.append(name)
        if integers:
            wrong = f"integers in the place of weights: {', '.join(sorted(integers)[:_SHOWN])}"
            remedy = "give the weights as they were published, with the quantization_config of their config.json"
            raise UserError(Problem("model", str(source), wrong, remedy))
    return model


def _is_no_report(record: Any) -> bool:
    text = record.getMessage()
    return "LOAD REPORT" not in text or "CONVERSION" in text  # an error of conversion is named there only


def fill(model: _Model, tensors: Mapping[str, "Tensor"], source: str) -> _Model:
    """Give a model on the meta device these very tensors, all of them and nothing else; evaluation mode."""
    tied = set(model.all_tied_weights_keys)
    untied = [
        f"{name} (not equal to {twin}, to which it is tied)"
        for name, twin in model.all_tied_weights_keys.items()
        if name in tensors and twin in tensors and not tensors[name].equal(tensors[twin])
    ]
    require_exact(source, (), untied, ())
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name not in tied}
    given = {name: tensor for name, tensor in tensors.items() if name not in tied}
    require_exact(source, shapes.keys() - given.keys(), given.keys() - shapes.keys(), ())
    require_exact(source, (), (), [name for name, tensor in given.items() if tensor.shape != shapes[name]])
    model.load_state_dict(given, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def require_exact(source: str, missing: Iterable[str], unexpected: Iterable[str], mismatched: Iterable[Any]) -> None:
    parts = []
    for what, found in (("missing", missing), ("without a place", unexpected), ("of another shape", mismatched)):
        if names := sorted(map(str, found)):
            more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
            parts.append(f"{what}: {', '.join(names[:_SHOWN])}{more}")
    if parts:
        remedy = "give weights and configuration of the same model"
        raise UserError(Problem("model", source, "tensors " + "; ".join(parts), remedy))
