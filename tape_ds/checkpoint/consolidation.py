"""A checkpoint's weights as one folder of trained weights, in fp32 where the engine keeps them so, on any machine.

Training in 16 bits keeps fp32 weights as well, sharded over all ranks, and over tensor-parallel ones once more. Here
they are joined under the names and in the file of the checkpoint's own folder of trained weights, so that every reader
of that takes this. One weight after another goes from mapped files to the disk: no GPU, no process group, and no more
than one weight in memory.
"""

import json
import os
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

from tape_ds import building, checkpoint, paths, storage
from tape_ds.checkpoint import engine_state, trained
from tape_ds.checkpoint.engine_state import EngineState
from tape_ds.errors import Problem, UserError
from tape_ds.models.files import weight_files

KEPT = (".json", ".jinja", ".txt", ".model")
"""Endings of the files that are copied: configurations and the tokenizer's; never a pickle."""
OF_THE_RUN = re.compile(r"manifest\.json|trainer_state\.json|rank_state_\d+\.json|.*\.index\.json")
"""Files with such endings that are not copied."""

_CHUNK = 2**20


def verify(source: Path) -> None:
    """Read all of a checkpoint; refuse it if it is not whole."""
    try:
        manifest = checkpoint.read(source)
        # sizes first, which cost nothing: hashes read the whole checkpoint
        faults = checkpoint.missing_files(source, manifest)
        if not faults:
            faults = checkpoint.corrupt_files(source, manifest)
    except ValueError as error:
        faults = [str(error)]
        if not os.path.isdir(source):
            faults = ["there is no such folder"]
    if faults:
        raise UserError(Problem("checkpoint", str(source), "; ".join(faults), alternatives(source)))


def alternatives(source: Path) -> str:
    """Return the remedy for a folder that is no whole checkpoint: the checkpoints in it, or next to it."""
    for folder in filter(os.path.isdir, (source, source.parent)):
        names = [each.name for each in checkpoint.committed(folder) if each != source]
        if names:
            return f"give a checkpoint of its run: {', '.join(names)}"
    if os.path.isdir(source):
        return "restore it from a copy"
    return "give a run's folder checkpoint-N"


def check_out(out: Path, source: Path) -> list[Problem]:
    """Return why ``out`` cannot be the new folder."""
    found = paths.check_new("out", out)
    if not found and out.resolve().is_relative_to(source.resolve()):
        wrong = "it is inside the checkpoint, which must not change"
        found = [Problem("out", str(out), wrong, "name a new folder")]
    return found


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
    trained.require_readable(files, "checkpoint")
    whole = any(file.match(trained.WHOLE_WEIGHTS) for file in files)
    # one file instead of several
    name = weight_files.WHOLE if whole or not files else files[0].name
    forms: dict[str, Tensor] = {}
    # by tensor-parallel rank
    states: list[EngineState] = []

    # forms, states and names are filled below, before this is called
    def build(folder: Path) -> None:
        folder.mkdir()
        for path in sorted(source.iterdir()):
            if path.is_file() and path.suffix in KEPT and not OF_THE_RUN.fullmatch(path.name):
                shutil.copyfile(path, folder / path.name)
        # the configuration of a whole model names the dtype of its weights
        if whole and forms:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            config["dtype"] = str(next(iter(forms.values())).dtype).removeprefix("torch.")
            storage.write_json(folder / "config.json", config)
        if files:
            _write(folder / name, files, forms, states, names)

    try:
        engine = engine_state.engine_folder(source)
        if engine is not None and any(map(engine_state.PARTS.fullmatch, os.listdir(engine))):
            states.append(EngineState(engine))
            for tensor in range(1, states[0].tensor_size):
                states.append(EngineState(engine, tensor))
            dtype = dtype or torch.float32
        for file in files:
            with safe_open(file, framework="pt") as saved:
                for key in saved.keys():  # noqa: SIM118 - it is no dict
                    held = saved.get_tensor(key)
                    forms[key] = torch.empty_like(held, dtype=dtype or held.dtype, device="meta")
        names = _engine_names(forms, states, set(record.names)) if states else {}
        if not files and record.names:
            raise ValueError("it holds no safetensors file, which would name the weights")
        # twice: for the temporary files of `_write`, and for the result
        need = 2 * sum(form.nbytes for form in forms.values())
        free = storage.free_bytes(out.parent)
        if free < need:
            wrong = f"it needs {storage.size(need)}, and {storage.size(free)} are free there"
            raise UserError(
                Problem("out", str(out), wrong, "make room, or name a folder on another disk")
            )
        building.build_aside(out, build, "out")
    except UserError:
        raise
    except ValueError as error:
        remedy = "use another checkpoint, or restore this one"
        raise UserError(Problem("checkpoint", str(source), str(error), remedy)) from error
    origin = "as they were saved"
    if states:
        ranks = sum(len(state.parts) for state in states)
        origin = f"masters of ZeRO-{states[0].stage} on {ranks} ranks"
        if len(states) > 1:
            origin += f", tensor_parallel_size {len(states)}"
    return Consolidated(out / name, forms, origin)


def _engine_names(
    forms: Iterable[str], states: list[EngineState], trained_names: set[str]
) -> dict[str, str]:
    """Return the engine's name of each parameter in the files of trained weights. Raises ValueError if they have
    others."""
    trained_here = states[0].shapes.keys()
    known = {name: name for name in trained_here} | dict(states[0].shared)
    # peft's keys are without the adapter's name, and as if nothing were wrapped
    by_key = {}
    for name, origin in known.items():
        unwrapped = name.replace(".modules_to_save.default", "")
        by_key[re.sub(r"\.default(?=\.|$)", "", unwrapped)] = origin
    by_key |= known
    # buffers are in the files as they are
    of_parameters = [key for key in forms if key not in states[0].buffers]
    if unknown := [key for key in of_parameters if key not in by_key]:
        raise ValueError(
            f"its safetensors files have {unknown[0]}, and the engine has not trained it"
        )
    names = {key: by_key[key] for key in of_parameters}
    if missing := trained_here - set(names.values()):
        raise ValueError(f"the engine has trained {min(missing)}, and no safetensors file holds it")
    if odd := trained_names - known.keys():
        raise ValueError(f"{trained.RECORD} names {min(odd)}, which the engine has not trained")
    return names


def _rounds_to(tensor: Tensor, rounded: Tensor) -> bool:
    """Whether this is the tensor in the other's dtype; a function, so that no piece of it is held for longer."""
    if tensor.shape != rounded.shape:
        return False
    # by pieces, so that no second copy of an embedding is in memory
    pieces = tensor.flatten().split(_CHUNK)
    rounded_pieces = rounded.flatten().split(_CHUNK)
    for piece, rounded_piece in zip(pieces, rounded_pieces, strict=True):
        # bytes, because a NaN is not equal to itself
        if not torch.equal(
            piece.to(rounded.dtype).view(torch.uint8), rounded_piece.view(torch.uint8)
        ):
            return False
    return True


def _joined(states: list[EngineState], name: str) -> Tensor:
    """Return an fp32 weight of the engine, the pieces of tensor-parallel ranks laid together. Raises ValueError."""
    tensor = states[0].whole(name)
    dim = states[0].cuts.get(name)
    # without a cut every tensor-parallel rank has all of it
    if dim is None:
        return tensor
    try:
        return torch.cat([tensor, *(state.whole(name) for state in states[1:])], dim=dim)
    except (LookupError, RuntimeError) as error:
        wrong = f"the pieces of {name} do not fit the cuts that the files record"
        raise ValueError(wrong) from error


def _write(
    made: Path,
    files: list[Path],
    forms: Mapping[str, Tensor],
    states: list[EngineState],
    names: Mapping[str, str],
) -> None:
    """Write the tensors of all files of trained weights into one. Raises ValueError if the masters do not round to the
    saved weights: the parts are of different saves."""
    tensors: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory(dir=made.parent) as aside:
        for file in files:
            with safe_open(file, framework="pt") as saved:
                for key in saved.keys():  # noqa: SIM118 - it is no dict
                    tensor = rounded = saved.get_tensor(key)
                    if key in names:
                        tensor = _joined(states, names[key])
                        if not _rounds_to(tensor, rounded):
                            raise ValueError(
                                f"{key} in {file.name} is not what the engine's fp32 weights round to"
                            )
                    # In pages of a file instead of memory. It is written, not mapped and filled: a disk that is full
                    # is an error then, and not the process's death.
                    path = Path(aside) / str(len(tensors))
                    tensor = tensor.to(forms[key].dtype)
                    tensor.flatten().view(torch.uint8).numpy().tofile(path)
                    laid = torch.from_file(str(path), size=tensor.numel(), dtype=tensor.dtype)
                    tensors[key] = laid.view(tensor.shape)
        save_file(tensors, made, metadata={"format": "pt"})
    storage.sync(made)
