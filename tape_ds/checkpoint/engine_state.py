"""The engine's files, read safely: its optimizer states and fp32 weights, whatever the ZeRO stage and number of ranks.

They are pickles, and a pickle can name any function to call. Here only tensors, plain values and four small classes of
DeepSpeed's are ever created; a file that names anything else is refused and not executed. Reading needs no GPU, no
process group and no model, and files are mapped, so that only the needed parts are read from the disk.

DeepSpeed's own readers cover only a part: ``zero_to_fp32`` holds all fp32 weights at once below stage 3, universal
checkpoints load at stage 1 or 2 alone, and from stage 3 to 3 give wrong losses without a warning.
``tests/integration/test_resharding.py`` holds what version 0.19.8 lacks, and fails when it is mended.
"""

import contextlib
import math
import operator
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Size, Tensor

ALLOWED: list[Any] = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
"""Classes that the engine's files may hold besides tensors and plain values."""
PARTS = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d{2,})_optim_states\.pt")
"""Files of ZeRO stage 1, 2 or 3, which :class:`EngineState` reads."""
TENSOR_PARALLEL = "tensor_parallel"
"""Key of tensor parallelism in a job's files of weights and counters: ``size``, the processes that hold pieces of the
same parameters, and ``cuts``, a parameter's name -> [dimension, [size of each piece]]. Absent, or an empty dict, where
there is none. Written by :func:`tape_ds.distributed.cuts.described`."""


def load(path: Path, mmap: bool = True) -> dict[str, Any]:
    """Return the contents of one of the engine's files, tensors on the CPU; with ``mmap`` valid until the file changes.
    Raises ValueError if it is damaged, or names a class or function that such files do not need."""
    try:
        with torch.serialization.safe_globals(ALLOWED):
            content = torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
    except pickle.UnpicklingError as error:
        wrong = f"cannot be read ({str(error).partition('. ')[0]})"
        with (
            contextlib.suppress(RuntimeError, ValueError, pickle.UnpicklingError),
            torch.serialization.safe_globals(ALLOWED),
        ):
            if foreign := torch.serialization.get_unsafe_globals_in_checkpoint(str(path)):
                wrong = f"names {', '.join(foreign)}, and was not loaded"
        raise ValueError(f"{path.name} {wrong}") from error
    except (RuntimeError, EOFError, LookupError, TypeError, AttributeError) as error:
        wrong = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path.name} is damaged ({wrong})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is none of the engine's files")
    return content


def engine_folder(checkpoint: Path) -> Path | None:
    """Return the engine's folder in a checkpoint, if any. Raises ValueError if there are several."""
    folders = sorted(filter(Path.is_dir, checkpoint.glob("global_step*")))
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders)
        raise ValueError(f"it holds several states of an engine: {names}")
    return folders[0] if folders else None


class EngineState:
    """The files of an engine of ZeRO stage 1, 2 or 3 in ``folder`` (``global_stepN``); under tensor parallelism, of the
    ranks that hold the piece ``tensor`` of each parameter. Raises ValueError if a file is missing, damaged, malicious
    or of another form."""

    def __init__(self, folder: Path, tensor: int = 0):
        by_rank = {}
        for match in map(PARTS.fullmatch, os.listdir(folder)):
            if match and int(match[2]) == tensor:
                by_rank[int(match[1])] = match[0]
        # in the order of ranks: by name, rank 10 would come before rank 2
        if not by_rank or sorted(by_rank) != list(range(len(by_rank))):
            of = f" of tensor-parallel rank {tensor}" if tensor else ""
            raise ValueError(f"the parts of ranks {sorted(by_rank)}{of} are no complete set")
        _, names = zip(*sorted(by_rank.items()), strict=True)
        # whatever is not where ZeRO puts it is a file of another form: one message for all of it, below
        try:
            self.parts = [load(folder / name)["optimizer_state_dict"] for name in names]
            """The optimizer's state of each rank."""
            self.stage = int(self.parts[0].get("zero_stage", 1))
            first = "zero_pp_rank_0_" if self.stage == 3 else ""
            self.model = load(folder / f"{first}mp_rank_{tensor:02d}_model_states.pt")
            """Rank 0's other file: counters, settings, and the weights in the model's precision, up to stage 2."""
            groups = self.model["param_shapes"]
            self.shapes: dict[str, Size] = {}
            """Of every parameter, or of this piece of it."""
            for group in groups:
                self.shapes.update(group.items())
            self._fragments = self._find_fragments(groups)
            self.shared: Mapping[str, str] = {**(self.model.get("shared_params") or {})}
            """Names of tied parameters -> the name that holds them, in the first piece."""
            self.buffers = frozenset(self.model.get("buffer_names") or ())
            """Names of what the model's files hold besides parameters."""
            stored = self.model.get(TENSOR_PARALLEL) or {"size": 1, "cuts": {}}
            self.tensor_size = operator.index(stored["size"])
            """Ranks that hold pieces of the same parameters; 1 without tensor parallelism."""
            self.cuts = {name: operator.index(cut[0]) for name, cut in stored["cuts"].items()}
            """Dimension along which a parameter was cut into pieces."""
            # one for all groups, or a list with one for each
            counts = self.parts[0]["partition_count"]
            of_groups = counts if isinstance(counts, list) else [counts]
            sizes = []
            for rank in range(len(names)):
                sizes.append([self._padded(flat, rank) for flat in range(len(groups))])
        except FileNotFoundError as error:
            raise ValueError(f"{Path(error.filename).name} is missing") from error
        except (LookupError, TypeError, AttributeError) as error:
            wrong = f"its engine's files have another form than ZeRO's ({type(error).__name__}: {error})"
            raise ValueError(wrong) from error
        if any(count != len(self.parts) for count in of_groups):
            raise ValueError(
                f"its {len(self.parts)} parts are not those of one job: the first names {counts}"
            )
        for name, sizes_of_rank in zip(names, sizes, strict=True):
            if sizes_of_rank != sizes[0]:
                raise ValueError(
                    f"{name} is of another job than {names[0]}: its tensors are of other sizes"
                )

    def states(self) -> dict[str, Any]:
        """Return the optimizer's states of a parameter: tensors with a value for each element, such as ``exp_avg``, and
        single values such as ``step``, which are the same for all. Empty before the first step. Raises ValueError if
        one is neither: it cannot be divided."""
        states: dict[str, Any] = self.optimizer()["state"].get(0, {})
        size = self._padded(0)
        odd = []
        for key, value in states.items():
            if is_divided(value) and value.shape != (size,):
                odd.append(key)
        if odd:
            raise ValueError(
                f"the optimizer's {', '.join(odd)} cannot be divided: not a value for each element"
            )
        return states

    def whole(self, name: str, key: str | None = None) -> Tensor:
        """Return a parameter's fp32 weights; or one of its optimizer states, such as ``exp_avg``. Raises ValueError if
        the parts do not hold it."""
        shape = self.shapes[name]
        try:
            # a tensor-parallel piece may have no element
            pieces = [torch.empty(0)]
            for rank, flat, start, count in self._fragments[name]:
                pieces.append(self._flat(rank, flat, key).narrow(0, start, count))
            flat_values = torch.cat(pieces)
            # stage 3 pads the last rank's slice; below it too few or too many values are of several saves
            if self.stage == 3:
                flat_values = flat_values[: shape.numel()]
            return flat_values.view(shape)
        except (LookupError, RuntimeError) as error:
            wrong = (
                f"the parts of its ranks do not fit the shape of {name}: they are of several saves"
            )
            raise ValueError(wrong) from error

    def _find_fragments(
        self, groups: list[Mapping[str, Size]]
    ) -> dict[str, list[tuple[int, int, int, int]]]:
        """Return the pieces of each parameter as (rank, flat tensor, first element, count)."""
        fragments: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in self.shapes}
        if self.stage == 3:
            # every parameter is cut into equal slices, the last one padded, and a rank's slices are laid end to end
            for flat, shapes in enumerate(groups):
                start = 0
                for name, shape in shapes.items():
                    count = math.ceil(shape.numel() / len(self.parts))
                    for rank in range(len(self.parts)):
                        fragments[name].append((rank, flat, start, count))
                    start += count
            return fragments

        # stages 1 and 2 lay the parameters of a group end to end, and give each rank an equal part of the whole
        paddings = self.parts[0].get("param_alignment_paddings") or [
            [0] * len(shapes) for shapes in groups
        ]
        for flat, shapes in enumerate(groups):
            size = self._padded(flat)
            at = 0
            for (name, shape), padding in zip(shapes.items(), paddings[flat], strict=True):
                end = at + shape.numel()
                # a parameter may begin on one rank and end on another
                while at < end:
                    rank, start = divmod(at, size)
                    count = min(end - at, size - start)
                    fragments[name].append((rank, flat, start, count))
                    at += count
                at += padding
        return fragments

    def _flat(self, rank: int, flat: int, key: str | None) -> Tensor:
        if key is not None:
            return self.optimizer(rank)["state"][flat][key]
        masters = "fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"
        return self.parts[rank][masters][flat]

    def _padded(self, flat: int, rank: int = 0) -> int:
        """Return the size of a rank's flat tensor with its padding, without which weights below stage 3 are saved."""
        size = self._flat(rank, flat, None).numel()
        # not with data_types.grad_accum_dtype, whose optimizer saves its padding, and no stage
        if self.stage < 3 and "zero_stage" in self.parts[rank]:
            size += self.parts[rank]["group_paddings"][flat]
        return size

    def optimizer(self, rank: int = 0) -> dict[str, Any]:
        """Return the ``state_dict`` of a rank's optimizer, over flat tensors instead of parameters."""
        key = "optimizer_state_dict" if self.stage == 3 else "base_optimizer_state"
        optimizer: dict[str, Any] = self.parts[rank][key]
        return optimizer


def is_divided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0
