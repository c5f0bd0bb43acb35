"""A checkpoint of one number of ranks, or of one ZeRO stage, written as another job's own.

The engine refuses shards that another number of ranks has written. They hold the same numbers all the same, an fp32
weight and the optimizer's values for each trained element, and where each lies is arithmetic
(:mod:`tape_ds.checkpoint.engine_layout`). So they are laid anew, bit for bit, in the form in which the wanted job would
have saved them, and that job resumes by the ordinary way, verified like every other checkpoint. The original is read
and never touched; elements go from file to file, and none of the state is ever in memory as a whole.

Tensor-parallel ranks hold pieces of parameters, and an engine sees nothing but its pieces: the ranks that share a piece
are laid anew by themselves, one piece after another. How parameters were cut, and into how many pieces, stays.

What belongs to a rank alone cannot be divided: its random numbers, which are left out, and its sums since the last
logging step, of which the mean over all ranks is kept.
"""

import json
import math
import re
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor

from tape_ds import checkpoint, storage
from tape_ds.checkpoint import Manifest, engine_state
from tape_ds.checkpoint.engine_layout import SUB_GROUP_SIZE, Layout, divided, joined, sliced
from tape_ds.checkpoint.engine_state import EngineState
from tape_ds.checkpoint.state_file import Space, write
from tape_ds.checkpoint.tensor_cuts import WholeState
from tape_ds.checkpoint.verification import against, verified
from tape_ds.errors import Problem, UserError, raise_if_any

STAGES = (1, 2, 3)
OF_A_RANK = re.compile(r"rng_state(_\d+)?\.pth|rank_state_\d+\.json")
"""Files of a checkpoint that belong to one rank."""
ANEW = "begin anew from its weights (tools/consolidate.py)"
"""The way out where nothing can be converted."""


def reshape(source: Path, output: Path, processes: int | None = None, stage: int | None = None) -> Path:
    """Write a checkpoint anew for a job of so many ranks and this stage.

    Args:
        source: a committed checkpoint, ``checkpoint-N``.
        output: folder around the new one, which gets the same name.
        processes: ranks of the wanted job, of all tensor-parallel pieces together; None: as many as before.
        stage: its ZeRO stage; None: as before.

    Returns:
        The new checkpoint, committed.

    Raises:
        UserError: the source is damaged or cannot be written in another form, or there is nothing to do.
        OSError: the disk.
    """
    manifest = verified(source)
    folder = output / source.name
    processes = manifest.processes if processes is None else processes
    stage = manifest.stage if stage is None else stage
    states, rank_state = _open(source, manifest, folder, processes, stage)
    assert stage is not None
    aside = folder.with_name(folder.name + checkpoint.WRITING)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        _copy_rest(source, manifest, aside)
        if rank_state is not None:
            for rank in range(processes):
                storage.write_json(aside / f"rank_state_{rank}.json", rank_state)
        engine = aside / states[0].folder.name
        engine.mkdir()
        for state in states:
            _write_engine(state, engine, _wanted_layout(state, processes // len(states), stage), stage)
        files = {
            path.relative_to(aside).as_posix(): checkpoint.entry(path) for path in aside.rglob("*") if path.is_file()
        }
        checkpoint.commit(aside, folder, replace(manifest, processes=processes, stage=stage, files=files))
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _open(
    source: Path, manifest: Manifest, folder: Path, processes: int, stage: int | None
) -> tuple[list[EngineState], dict[str, Any] | None]:
    """The engine's state of a checkpoint that can be written in the wanted form, by tensor-parallel rank; and what each
    new rank is to hold.

    Raises:
        UserError: with all that is against it.
    """
    problems = []
    if processes < 1:
        problems.append(Problem("processes", processes, "a job has ranks", "give 1 or more"))
    if stage is not None and stage not in STAGES and manifest.stage:
        problems.append(Problem("stage", stage, "not a ZeRO stage with shards", "give 1, 2 or 3"))
    problems += against("output", folder, source)
    problems += _against_pieces(manifest.tensor, processes, stage)
    if not manifest.stage:
        wrong = "it has no shards: it was saved " + ("without an engine" if manifest.stage is None else "at stage 0")
        same = f" with tensor_parallel_size {manifest.tensor}" if manifest.tensor > 1 else ""
        remedy = f"resume it as it is, on any number of processes{same}; or {ANEW}"
        problems.append(Problem("checkpoint", str(source), wrong, remedy))
    elif (processes, stage) == (manifest.processes, manifest.stage):
        wrong = f"it is of {processes} processes and stage {stage} already"
        problems.append(Problem("checkpoint", str(source), wrong, "resume it, or give --processes or --stage"))
    raise_if_any(problems)
    try:
        found = engine_state.engine_folder(source)
        if found is None:
            raise ValueError("there is no engine's folder in it")
        states = WholeState(found).states
        if len(states) != manifest.tensor:
            raise ValueError(f"its engine's files are of tensor_parallel_size {len(states)}, and not {manifest.tensor}")
        for state in states:
            _check_convertible(state)
        rank_state = _rank_state(source, manifest)
    except ValueError as error:
        raise UserError(Problem("checkpoint", str(source), str(error), ANEW)) from error
    _check_room(manifest, folder)
    return states, rank_state


def _against_pieces(size: int, processes: int, stage: int | None) -> Iterator[Problem]:
    """What keeps a checkpoint of so many tensor-parallel pieces from the wanted form."""
    saved = f"the checkpoint was saved with tensor_parallel_size {size}"
    if processes % size:
        wrong = f"{saved}, and so many processes do not fall into groups of {size}"
        yield Problem("processes", processes, wrong, f"give a multiple of {size}; or, for more or fewer pieces, {ANEW}")
    if stage == 3 and size > 1:
        yield Problem("stage", stage, f"{saved}, which goes with stages 1 and 2", f"give 1 or 2, or {ANEW}")


def _check_convertible(state: EngineState) -> None:
    zero = state.settings.get("zero_optimization", {})
    if state.is_accumulating:
        raise ValueError("data_types.grad_accum_dtype gives the engine files of another kind, which are not converted")
    if zero.get("round_robin_gradients") and state.stage < 3:
        raise ValueError("round_robin_gradients orders parameters by the number of ranks, which is not converted")
    known = {*state.layout.shapes, *state.shared, *state.model["buffer_names"]}
    if unknown := sorted(state.model["module"].keys() - known):
        raise ValueError(f"{unknown[0]} is neither trained nor a buffer")
    for number in range(len(state.layout.flats)):
        state.element_keys(number)


def _check_room(manifest: Manifest, folder: Path) -> None:
    free, need = storage.free_bytes(folder.parent), manifest.size
    if free < need:
        wrong = f"it needs about {storage.size(need)}, and {storage.size(free)} are free there"
        raise UserError(Problem("output", str(folder.parent), wrong, "make room, or name a folder on another disk"))


def _copy_rest(source: Path, manifest: Manifest, aside: Path) -> None:
    """Everything that is not the engine's, nor a rank's own."""
    for name in manifest.files:
        if "/" not in name and not OF_A_RANK.fullmatch(name):
            shutil.copyfile(source / name, aside / name)
            storage.sync(aside / name)


def _rank_state(source: Path, manifest: Manifest) -> dict[str, Any] | None:
    """What every new rank is to hold: what all old ones agree on, and of their sums the mean, so that the mean over
    all ranks, which is what is logged, stays as it was. None where nothing was kept.

    Raises:
        ValueError: they disagree on something that has no mean.
    """
    names = [name for name in manifest.files if re.fullmatch(r"rank_state_\d+\.json", name)]
    held = [json.loads((source / name).read_text(encoding="utf-8")) for name in names]
    return {key: _common(key, [each[key] for each in held]) for key in held[0]} if held else None


def _common(key: str, values: list[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    try:
        return (math.fsum(map(float.fromhex, values)) / len(values)).hex()
    except TypeError as error:
        raise ValueError(f"its ranks disagree on {key}, which has no mean") from error


def _wanted_layout(state: EngineState, processes: int, stage: int) -> Layout:
    groups = state.layout.groups()
    if stage == 3:
        size = state.settings.get("zero_optimization", {}).get("sub_group_size", SUB_GROUP_SIZE)
        return sliced(divided(groups, processes, int(size)), processes)
    return joined(groups, processes, _paddings(state))


def _paddings(state: EngineState) -> list[list[int]]:
    """Elements left free behind each parameter at stages 1 and 2; none where stage 3 was before."""
    saved = state.parts[0].get("param_alignment_paddings")
    return saved or [[0] * len(group) for group in state.layout.groups()]


def _write_engine(state: EngineState, folder: Path, layout: Layout, stage: int) -> None:
    for rank in range(layout.processes):
        if stage == 3 or rank == 0:
            name = engine_state.model_name(stage, rank, state.tensor)
            write(folder / name, _model(state, layout, stage, rank))
        part = _joined_part if stage < 3 else _sliced_part
        outside = {"ds_config": _settings(state, stage), "ds_version": state.model["ds_version"]}
        name = engine_state.part_name(state.prefix, rank, state.tensor)
        write(folder / name, {"optimizer_state_dict": part(state, layout, stage, rank), **outside})


def _settings(state: EngineState, stage: int) -> dict[str, Any]:
    zero = {**state.settings.get("zero_optimization", {}), "stage": stage}
    return {**state.settings, "zero_optimization": zero}


def _model(state: EngineState, layout: Layout, stage: int, rank: int) -> dict[str, Any]:
    """The file of weights and counters: stage 3 keeps no weights there, and names tied ones on rank 0 alone."""
    changed = {
        "module": _module(state, layout, stage),
        "param_shapes": [OrderedDict(shapes) for shapes in _shapes(layout, stage)],
        "shared_params": dict(state.shared) if rank == state.tensor == 0 else {},
        "dp_world_size": layout.processes,
        "ds_config": _settings(state, stage),
    }
    return {**state.model, **changed}


def _shapes(layout: Layout, stage: int) -> Iterator[Mapping[str, Size]]:
    return (flat.shapes for flat in layout.flats) if stage == 3 else iter(layout.groups())


def _module(state: EngineState, layout: Layout, stage: int) -> "OrderedDict[str, Any]":
    """The model's weights in its own precision, or at stage 3 empty places; and its buffers."""
    held, made, found = state.model["module"], dict[str, Space](), OrderedDict[str, Any]()
    for key, tensor in held.items():
        name = state.shared.get(key, key)
        if name not in layout.shapes:
            found[key] = tensor
        elif stage == 3:
            found[key] = torch.empty(0, dtype=tensor.dtype)
        else:  # the weights as they are held, or cast from their masters as a step casts them
            fill = partial(_copy, tensor) if state.stage < 3 else partial(state.read, name, 0)
            found[key] = made.setdefault(name, Space(layout.shapes[name], tensor.dtype, fill))
    return found


def _copy(origin: Tensor, into: Tensor) -> None:
    into.copy_(origin)


def _joined_part(state: EngineState, layout: Layout, stage: int, rank: int) -> dict[str, Any]:
    """A rank's part at stages 1 and 2: weights without the padding at their end, optimizer states with it."""
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    flats = range(len(layout.flats))
    paddings = [layout.padding(rank, flat) for flat in flats]
    masters = [_flat(state, layout, rank, flat, None, paddings[flat]) for flat in flats]
    slices = [
        OrderedDict(
            (piece.name, fragment_address(numel=piece.count, start=piece.start))
            for piece in layout.of_flat.get((rank, flat), [])
        )
        for flat in flats
    ]
    clipping = state.settings.get("gradient_clipping", 0.0)
    return {
        **_scaling(state),
        "clip_grad": state.parts[0].get("clip_grad", clipping),
        "base_optimizer_state": _optimizer(state, layout, rank),
        "single_partition_of_fp32_groups": masters,
        "zero_stage": ZeroStageEnum(stage),
        "group_paddings": paddings,
        "param_alignment_paddings": _paddings(state),
        "partition_count": [layout.processes] * len(layout.flats),
        "ds_version": state.model["ds_version"],
        "param_slice_mappings": slices,
    }


def _sliced_part(state: EngineState, layout: Layout, stage: int, rank: int) -> dict[str, Any]:
    """A rank's part at stage 3."""
    from deepspeed.runtime.zero.config import ZeroStageEnum

    return {
        "zero_stage": ZeroStageEnum(stage),
        **_scaling(state),
        "partition_count": layout.processes,
        "optimizer_state_dict": _optimizer(state, layout, rank),
        "fp32_flat_groups": [_flat(state, layout, rank, flat, None) for flat in range(len(layout.flats))],
    }


def _scaling(state: EngineState) -> dict[str, Any]:
    """The loss scale, which all ranks agree on."""
    return {key: state.parts[0][key] for key in ("loss_scaler", "dynamic_loss_scale", "overflow")}


def _optimizer(state: EngineState, layout: Layout, rank: int) -> dict[str, Any]:
    """What the optimizer's own ``state_dict`` would be, of flat tensors."""
    groups = [
        {**settings, "params": [number for number, flat in enumerate(layout.flats) if flat.group == group]}
        for group, settings in enumerate(state.param_groups)
    ]
    states = {}
    for number, flat in enumerate(layout.flats):
        origin = next(i for i, before in enumerate(state.layout.flats) if before.group == flat.group)
        single = dict(state.flat_states(origin)[0])
        for key in state.element_keys(origin):
            single[key] = _flat(state, layout, rank, number, key)
        if single:
            states[number] = single
    return {"state": states, "param_groups": groups}


def _flat(state: EngineState, layout: Layout, rank: int, flat: int, key: str | None, without: int = 0) -> Space:
    """A rank's flat tensor, of weights (``key`` None) or of an optimizer state; ``without`` elements at its end."""

    def fill(tensor: Tensor) -> None:
        for piece in layout.of_flat.get((rank, flat), []):
            state.read(piece.name, piece.at, tensor[piece.start : piece.start + piece.count], key)

    origin = next(i for i, before in enumerate(state.layout.flats) if before.group == layout.flats[flat].group)
    size = layout.flats[flat].size - without
    return Space((size,), state.dtype(origin, key), fill, requires_grad=key is None)
