"""A checkpoint's weights as one folder of trained weights, in fp32 where the engine keeps them so, on any machine.

Training in 16 bits keeps fp32 weights as well, sharded over all ranks, and over tensor-parallel ones once more. Here
they are joined under the names and in the file of the checkpoint's own folder of trained weights, so that every reader
of that takes this. One weight after another goes from mapped files to the disk: no GPU, no process group, and no more
than one weight in memory.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tape_ds import building, storage
from tape_ds.checkpoint import engine_state, trained
from tape_ds.checkpoint.engine_state import EngineState
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.loading import weight_files

KEPT = (".json", ".jinja", ".txt", ".model")
"""Endings of the files that come along: configurations and the tokenizer's; never a pickle."""
OF_THE_RUN = re.compile(r"manifest\.json|trainer_state\.json|rank_state_\d+\.json|.*\.index\.json")
"""Files with such endings that are the run's, or the weights', and do not."""

_CHUNK = 2**20


@dataclass(frozen=True)
class Consolidated:
    """The written folder."""

    file: Path
    forms: Mapping[str, Tensor]
    """Its weights on the device ``meta``."""
    origin: str
    """Source of the weights, in words."""


def consolidate(source: Path, out: Path, dtype: torch.dtype | None = None) -> Consolidated:
    """Write a checkpoint's weights as the new folder of trained weights ``out``, whole or absent; by default fp32 from
    an engine, else as they were saved. The checkpoint is verified or trusted; only its optimizer's files are pickles,
    and they are read safely."""
    record = trained.read_record(source)
    files = sorted(source.glob("*.safetensors"))
    raise_if_any([problem for file in files for problem in weight_files.check_file(file, "checkpoint")])
    whole = any(file.match(trained.WHOLE_WEIGHTS) for file in files)
    name = (
        weight_files.WHOLE if whole or not files else files[0].name
    )  # several files become one, which every reader takes
    forms: dict[str, Tensor] = {}

    def build(folder: Path) -> None:
        folder.mkdir()
        _copy_rest(source, folder, forms if whole else {})
        if files:
            _write(folder / name, files, forms, states, names)

    try:
        states = _engine(source)
        dtype = torch.float32 if states and dtype is None else dtype
        for file in files:
            with safe_open(file, framework="pt") as saved:
                for key in saved.keys():  # noqa: SIM118 - it is no dict
                    held = saved.get_tensor(key)
                    forms[key] = torch.empty_like(held, dtype=dtype or held.dtype, device="meta")
        names = _engine_names(forms, states, set(record.names)) if states else {}
        if not files and record.names:
            raise ValueError("it holds no safetensors file, which tells the names of the weights")
        need, free = 2 * sum(form.nbytes for form in forms.values()), storage.free_bytes(out.parent)
        if free < need:  # laid aside, and in the file
            wrong = f"it needs {storage.size(need)}, and {storage.size(free)} are free there"
            raise UserError(Problem("out", str(out), wrong, "make room, or name a folder on another disk"))
        building.build_aside(out, build, "out")
    except UserError:
        raise
    except ValueError as error:
        remedy = "use another checkpoint, or restore this one"
        raise UserError(Problem("checkpoint", str(source), str(error), remedy)) from error
    origin = "as they were saved"
    if states:
        ranks, cut = sum(len(state.parts) for state in states), f", tensor_parallel_size {len(states)}"
        origin = f"masters of ZeRO-{states[0].stage} on {ranks} ranks{cut if len(states) > 1 else ''}"
    return Consolidated(out / name, forms, origin)


def _engine(source: Path) -> list[EngineState]:
    """Return the engine's state, by tensor-parallel rank; none where it holds no better weights than the trained
    ones."""
    folder = engine_state.engine_folder(source)
    if folder is None or not any(engine_state.PARTS.fullmatch(path.name) for path in folder.iterdir()):
        return []
    first = EngineState(folder)
    return [first, *(EngineState(folder, tensor) for tensor in range(1, first.tensor_size))]


def _engine_names(forms: Iterable[str], states: list[EngineState], trained_names: set[str]) -> dict[str, str]:
    """Return the engine's name of each tensor in the files of trained weights. Raises ValueError if they have other
    parameters."""
    trained_here = states[0].shapes.keys()
    known = {**{name: name for name in trained_here}, **states[0].shared}
    # peft's keys are without the adapter's name, and as if nothing were wrapped
    keys = {name: re.sub(r"\.default(?=\.|$)", "", name.replace(".modules_to_save.default", "")) for name in known}
    by_key = {keys[name]: origin for name, origin in known.items()} | known
    if unknown := [key for key in forms if key not in by_key]:
        raise ValueError(f"its safetensors files have {unknown[0]}, and the engine has not trained it")
    found = {key: by_key[key] for key in forms}
    if missing := trained_here - found.values():
        raise ValueError(f"the engine has trained {min(missing)}, and no safetensors file holds it")
    if odd := trained_names - known.keys():
        raise ValueError(f"{trained.RECORD} names {min(odd)}, which the engine has not trained")
    return found


def _copy_rest(source: Path, folder: Path, whole: Mapping[str, Tensor]) -> None:
    """Copy record, configurations and tokenizer; the configuration of a whole model names the dtype of its weights."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in KEPT and not OF_THE_RUN.fullmatch(path.name):
            shutil.copyfile(path, folder / path.name)
    if whole:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["dtype"] = str(next(iter(whole.values())).dtype).removeprefix("torch.")
        storage.write_json(folder / "config.json", config)


def _write(
    made: Path, files: list[Path], forms: Mapping[str, Tensor], states: list[EngineState], names: Mapping[str, str]
) -> None:
    """Write the tensors of all files of trained weights into one. Raises ValueError if the masters do not round to the
    saved weights: the parts are of different saves."""
    tensors: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory(dir=made.parent) as aside:
        for file in files:
            with safe_open(file, framework="pt") as saved:
                for key in saved.keys():  # noqa: SIM118 - it is no dict
                    tensor = rounded = saved.get_tensor(key)
                    if states:
                        tensor = _whole(states, names[key])
                        pairs = zip(*(each.flatten().split(_CHUNK) for each in (tensor, rounded)), strict=False)
                        if tensor.shape != rounded.shape or not all(
                            torch.equal(one.to(other.dtype).view(torch.uint8), other.view(torch.uint8))
                            for one, other in pairs
                        ):
                            raise ValueError(f"{key} in {file.name} is not what the engine's fp32 weights round to")
                    # In pages of a file instead of memory. It is written, not mapped and filled: a disk that is full
                    # is an error then, and not the process's death.
                    path, tensor = Path(aside) / str(len(tensors)), tensor.to(forms[key].dtype)
                    tensor.flatten().view(torch.uint8).numpy().tofile(path)
                    laid = torch.from_file(str(path), size=tensor.numel(), dtype=tensor.dtype)
                    tensors[key] = laid.view(tensor.shape)
        save_file(tensors, made, metadata={"format": "pt"})
    storage.sync(made)


def _whole(states: list[EngineState], name: str) -> Tensor:
    """Return a parameter's fp32 weights; where it was not cut over tensor-parallel ranks, those of the first."""
    dim = states[0].cuts.get(name)
    if dim is None:
        return states[0].whole(name)
    try:
        return torch.cat([state.whole(name) for state in states], dim=dim)
    except (LookupError, RuntimeError) as error:
        raise ValueError(f"the pieces of {name} do not fit what the files say of its cuts") from error
