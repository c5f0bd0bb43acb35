"""A checkpoint's weights as one trained folder, in fp32 where the engine keeps them so, on any machine.

Training in 16 bits keeps fp32 weights beside the 16-bit ones, cut over all ranks, and over tensor-parallel ones once
more. Here they are put together under the names and in the file that the checkpoint's own trained folder uses, so that
whatever reads that reads this. Elements go from the mapped files to the new one a few megabytes at a time: no GPU, no
process group, and no tensor in memory whole.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tape_ds import storage
from tape_ds.checkpoint import engine_state, tensor_file, trained
from tape_ds.checkpoint.tensor_cuts import WholeState
from tape_ds.checkpoint.tensor_file import CHUNK, Form, TensorFile
from tape_ds.data import cache
from tape_ds.errors import Problem, UserError

KEPT = (".json", ".jinja", ".txt", ".model")
"""Endings of the files that come along: configurations and the tokenizer's; never a pickle."""
OF_THE_RUN = re.compile(r"manifest\.json|trainer_state\.json|rank_state_\d+\.json|.*\.index\.json")
"""Files with such endings that are the run's, or the weights', and do not."""
WHOLE = "model.safetensors"


@dataclass(frozen=True)
class Consolidated:
    """What was written."""

    file: Path
    forms: Mapping[str, Form]
    origin: str
    """Where the weights come from, in words."""


def consolidate(source: Path, out: Path, dtype: torch.dtype | None = None) -> Consolidated:
    """Write a checkpoint's weights as a trained folder.

    Args:
        source: the checkpoint, verified or trusted; only its optimizer's files are pickles, and they are read safely.
        out: a folder that is not there; it is whole or absent.
        dtype: of the weights; None: fp32 from an engine, else as they were saved.

    Raises:
        UserError: the checkpoint is not whole or its parts do not belong together, or there is no room.
        OSError: the disk.
    """
    record = trained.read_record(source)
    try:
        files = [tensor_file.read(path) for path in sorted(source.glob("*.safetensors"))]
        state = _engine(source)
        names = {} if state is None else _engine_names(files, state, set(record.names))
    except ValueError as error:
        raise _refused(source, error) from error
    if not files and record.names:
        raise _refused(source, ValueError("it holds no safetensors file, which tells the names of the weights"))
    forms = _forms(files, dtype or (None if state is None else torch.float32))
    _check_room(out, forms)

    def build(folder: Path) -> None:
        folder.mkdir()
        _copy_rest(source, folder, forms if _is_whole(files) else {})
        if files:
            write = {name: file for file in files for name in file.forms}
            tensor_file.write(
                folder / _file_name(files), forms, lambda name: _weights(write[name], name, names, state, forms[name])
            )

    try:
        cache.build_aside(out, build)
    except UserError:
        raise
    except ValueError as error:
        raise _refused(source, error) from error
    return Consolidated(out / _file_name(files), forms, _origin(state))


def _refused(source: Path, error: ValueError) -> UserError:
    return UserError(Problem("checkpoint", str(source), str(error), "use another checkpoint, or restore this one"))


def _engine(source: Path) -> WholeState | None:
    """The engine's state; None where its weights are no better than those of the trained folder."""
    folder = engine_state.engine_folder(source)
    return WholeState(folder) if folder is not None and engine_state.is_sharded(folder) else None


def _origin(state: WholeState | None) -> str:
    if state is None:
        return "as they were saved"
    cut = f", tensor_parallel_size {len(state.states)}" if len(state.states) > 1 else ""
    return f"masters of ZeRO-{state.stage} on {state.processes} ranks{cut}"


def _engine_names(files: list[TensorFile], state: WholeState, trained_names: set[str]) -> dict[str, str]:
    """The engine's name of each tensor in the trained folder's files.

    Raises:
        ValueError: they do not speak of the same parameters.
    """
    known = {**{name: name for name in state.shapes}, **state.shared}
    by_key = {key_of(name): origin for name, origin in known.items()} | known
    found = {}
    for file in files:
        for key, form in file.forms.items():
            name = by_key.get(key)
            if name is None:
                raise ValueError(f"{file.path.name} has {key}, and the engine has not trained it")
            if tuple(state.shapes[name]) != form.shape:
                raise ValueError(f"{key} has another shape in {file.path.name} than in the engine")
            found[key] = name
    if missing := state.shapes.keys() - found.values():
        raise ValueError(f"the engine has trained {min(missing)}, and no safetensors file holds it")
    if odd := trained_names - known.keys():
        raise ValueError(f"{trained.RECORD} names {min(odd)}, which the engine has not trained")
    return found


def key_of(name: str) -> str:
    """What peft's file calls a parameter: its own name without the adapter's, and as if nothing were wrapped."""
    return re.sub(r"\.default(?=\.|$)", "", name.replace(".modules_to_save.default", ""))


def _forms(files: list[TensorFile], dtype: torch.dtype | None) -> dict[str, Form]:
    return {name: Form(dtype or form.dtype, form.shape) for file in files for name, form in file.forms.items()}


def _is_whole(files: list[TensorFile]) -> bool:
    return any(file.path.match(trained.WHOLE_WEIGHTS) for file in files)


def _file_name(files: list[TensorFile]) -> str:
    """A whole model in several files becomes one, which every reader takes."""
    return WHOLE if not files or _is_whole(files) else files[0].path.name


def _check_room(out: Path, forms: Mapping[str, Form]) -> None:
    free, need = storage.free_bytes(out.parent), sum(form.size for form in forms.values())
    if free < need:
        wrong = f"it needs {storage.size(need)}, and {storage.size(free)} are free there"
        raise UserError(Problem("out", str(out), wrong, "make room, or name a folder on another disk"))


def _copy_rest(source: Path, folder: Path, whole: Mapping[str, Form]) -> None:
    """Record, configurations and tokenizer; the configuration of a whole model names the dtype of its weights."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in KEPT and not OF_THE_RUN.fullmatch(path.name):
            shutil.copyfile(path, folder / path.name)
    if whole:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["dtype"] = str(next(iter(whole.values())).dtype).removeprefix("torch.")
        storage.write_json(folder / "config.json", config)


def _weights(
    file: TensorFile, key: str, names: Mapping[str, str], state: WholeState | None, form: Form
) -> Iterator[Tensor]:
    """A tensor's elements in the wanted dtype, a few at a time; masters are held to the weights that were saved.

    Raises:
        ValueError: those are not what the masters round to: the parts are of different saves.
    """
    for number, saved in enumerate(file.chunks(key)):
        if state is None:
            yield saved.to(form.dtype)
            continue
        master = torch.empty(saved.shape, dtype=torch.float32)
        state.read(names[key], number * CHUNK, master)
        if not torch.equal(master.to(saved.dtype).view(torch.uint8), saved.view(torch.uint8)):
            raise ValueError(f"{key} in {file.path.name} is not what the engine's fp32 weights round to")
        yield master.to(form.dtype)
