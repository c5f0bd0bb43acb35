"""The engine's files, read safely: its optimizer states and fp32 weights, whatever the ZeRO stage and number of ranks.

They are pickles, and a pickle can name any function to call. Here only tensors, plain values and four small classes of
DeepSpeed's are ever made of one; whatever else a file names, it is refused and not executed. Reading needs no GPU, no
process group and no model, and files are mapped, so that only what is used is read from the disk.
"""

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tape_ds.checkpoint.engine_layout import Layout, joined, sliced

PARTS = re.compile(r"(bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d{2,})_optim_states\.pt")
TENSOR_PARALLEL = "tensor_parallel"
"""What a job's files of weights and counters say of tensor parallelism, by this key: ``size``, the processes that hold
pieces of the same parameters, and ``cuts``, a parameter's name -> [dimension, [size of each one's piece]]. Nothing, or
an empty dict, where there is none. Written by :func:`tape_ds.parallel.cuts.described`."""
_OF_TENSOR = re.compile(r"mp_rank_(\d{2,})_")


def model_name(stage: int, rank: int = 0, tensor: int = 0) -> str:
    """Name of a file of weights and counters: one for all ranks up to stage 2, one for each at stage 3.

    Args:
        stage: of ZeRO.
        rank: among those that share the optimizer's states.
        tensor: among those that hold pieces of the same parameters.
    """
    return f"{f'zero_pp_rank_{rank}_' if stage == 3 else ''}mp_rank_{tensor:02d}_model_states.pt"


def part_name(prefix: str, rank: int, tensor: int = 0) -> str:
    """Name of a rank's file of optimizer states; ``prefix`` as in :attr:`EngineState.prefix`, ranks as in
    :func:`model_name`."""
    return f"{prefix}zero_pp_rank_{rank}_mp_rank_{tensor:02d}_optim_states.pt"


def load(path: Path, mmap: bool = True) -> dict[str, Any]:
    """Contents of one of the engine's files, tensors on the CPU; what ``torch.load`` without safety would give.

    Args:
        path: of the file.
        mmap: map it instead of reading it; its tensors are good for as long as nobody writes into the file.

    Raises:
        ValueError: it is damaged, or names a class or function that such files have no need of.
    """
    try:
        with torch.serialization.safe_globals(_allowed()):
            content = torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
    except pickle.UnpicklingError as error:
        with torch.serialization.safe_globals(_allowed()):
            foreign = _foreign(path)
        wrong = (
            f"names {', '.join(foreign)}, and was not loaded"
            if foreign
            else f"cannot be read ({str(error).partition('. ')[0]})"
        )
        raise ValueError(f"{path.name} {wrong}") from error
    except (RuntimeError, EOFError, LookupError, TypeError, AttributeError) as error:
        wrong = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path.name} is damaged ({wrong})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is none of the engine's files")
    return content


def _foreign(path: Path) -> list[str]:
    """Names in a pickle that are not allowed."""
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except (RuntimeError, ValueError, pickle.UnpicklingError):
        return []


def _allowed() -> list[Any]:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


def engine_folder(checkpoint: Path) -> Path | None:
    """The engine's folder in a checkpoint; None: it was saved without one.

    Raises:
        ValueError: there are several.
    """
    found = sorted(path for path in checkpoint.glob("global_step*") if path.is_dir())
    if len(found) > 1:
        raise ValueError(f"it holds several states of an engine: {', '.join(path.name for path in found)}")
    return found[0] if found else None


def is_sharded(folder: Path) -> bool:
    """Whether an engine's folder holds what :class:`EngineState` reads: ZeRO stage 1, 2 or 3."""
    return any(PARTS.fullmatch(path.name) for path in folder.iterdir())


class EngineState:
    """What an engine of ZeRO stage 1, 2 or 3 saved; under tensor parallelism, the ranks that hold one piece of each
    parameter (:mod:`tape_ds.checkpoint.tensor_cuts` has all of them).

    Args:
        folder: of the engine, ``global_stepN``.
        tensor: which piece.
        shared: tied parameters, as :attr:`shared` of the first piece; the files of the others do not tell them.

    Raises:
        ValueError: a file is missing, damaged, malicious or of a kind that is not read here.
    """

    def __init__(self, folder: Path, tensor: int = 0, shared: Mapping[str, str] | None = None):
        self.folder = folder
        self.tensor = tensor
        self._shared = shared
        try:
            self._read(folder)
        except (LookupError, TypeError, AttributeError) as error:
            wrong = f"its engine's files have another form than ZeRO's ({type(error).__name__}: {error})"
            raise ValueError(wrong) from error

    def _read(self, folder: Path) -> None:
        names = _part_names(folder, self.tensor)
        self.prefix = "bf16_" if names[0].startswith("bf16_") else ""
        """Of the file names of a bf16 engine."""
        self.parts = [load(folder / name)["optimizer_state_dict"] for name in names]
        """The optimizer's state of each rank."""
        self.stage = int(self.parts[0].get("zero_stage", 1))
        model = model_name(self.stage, 0, self.tensor)
        if not (folder / model).exists():
            raise ValueError(f"{model} is missing")
        self.model = load(folder / model)
        """Rank 0's other file: counters, settings, and the weights in the model's precision, up to stage 2."""
        self.tensor_size = self._tensor_size()
        """Ranks that hold pieces of the same parameters; 1 without tensor parallelism."""
        self._check_names()
        if self.model.get("frozen_param_fragments"):
            raise ValueError("it holds frozen parameters, which no checkpoint of this project does")
        self.layout = self._layout()
        """Where each parameter lies."""
        self._masters = [self._flats(part) for part in self.parts]
        self._check_sizes()

    @property
    def is_accumulating(self) -> bool:
        """Whether the engine keeps fp32 gradients beside bf16 weights at stage 1, by an optimizer wrapper of its own
        (``data_types.grad_accum_dtype``) with its own files."""
        return "zero_stage" not in self.parts[0]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The engine's configuration."""
        return self.model.get("ds_config") or {}

    @property
    def shared(self) -> Mapping[str, str]:
        """Names of tied parameters that are kept under another one's, with that one's."""
        return self.model.get("shared_params") or self._shared or {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's settings, by group, with the numbers of its flat tensors."""
        return self._base(self.parts[0])["param_groups"]

    def flat_states(self, flat: int) -> list[dict[str, Any]]:
        """What the optimizer keeps of a flat tensor, by rank; empty before the first step."""
        return [self._base(part)["state"].get(flat, {}) for part in self.parts]

    def read(self, name: str, start: int, into: Tensor, key: str | None = None) -> None:
        """Copy elements of a parameter, from ``start`` on and as many as ``into`` has, casting to its dtype.

        Args:
            name: of the parameter.
            start: number of the first element.
            into: contiguous.
            key: of an optimizer state such as ``exp_avg``; None: fp32 weights.
        """
        into, end = into.view(-1), start + into.numel()
        for piece in self.layout.of_parameter[name]:
            low, high = max(start, piece.at), min(end, piece.at + piece.count)
            if low < high:
                held = self._held(piece.rank, piece.flat, key)
                first = piece.start + low - piece.at
                into[low - start : high - start].copy_(held[first : first + high - low])

    def whole(self, name: str, key: str | None = None) -> Tensor:
        """A parameter's fp32 weights, or one of its optimizer states: :meth:`read` of all."""
        flat = self.layout.of_parameter[name][0].flat
        found = torch.empty(self.layout.shapes[name], dtype=self._held(0, flat, key).dtype)
        self.read(name, 0, found, key)
        return found

    def dtype(self, flat: int, key: str | None = None) -> torch.dtype:
        """Of a flat tensor, or of an optimizer state of it."""
        return self._held(0, flat, key).dtype

    def element_keys(self, flat: int) -> list[str]:
        """Optimizer states that have a value for each element, such as ``exp_avg``.

        Raises:
            ValueError: one has neither that nor a single value: it cannot be divided.
        """
        size = self.layout.flats[flat].size
        tensors = {key: value for key, value in self.flat_states(flat)[0].items() if isinstance(value, Tensor)}
        if odd := [key for key, value in tensors.items() if value.dim() and value.shape != (size,)]:
            raise ValueError(f"the optimizer's {', '.join(odd)} cannot be divided: not a value for each element")
        return [key for key, value in tensors.items() if value.dim()]

    def _held(self, rank: int, flat: int, key: str | None) -> Tensor:
        return self._masters[rank][flat] if key is None else self._base(self.parts[rank])["state"][flat][key]

    def _base(self, part: Mapping[str, Any]) -> dict[str, Any]:
        base = part["optimizer_state_dict" if self.stage == 3 else "base_optimizer_state"]
        if not isinstance(base, dict):
            raise ValueError("its optimizer states are of the engine's elastic form, which is not read here")
        return base

    def _flats(self, part: Mapping[str, Any]) -> Sequence[Tensor]:
        return part["fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"]

    def _tensor_size(self) -> int:
        """What the files say of it, held to which of them there are.

        Raises:
            ValueError: they say something else.
        """
        told = self.model.get(TENSOR_PARALLEL)
        if not told:
            return 1
        held = sorted({int(match[1]) for path in self.folder.iterdir() if (match := _OF_TENSOR.search(path.name))})
        if told["size"] != len(held) or held != list(range(len(held))):
            wrong = f"its files are of tensor-parallel ranks {held}, and tensor_parallel_size was {told['size']}"
            raise ValueError(wrong)
        if len(held) > 1 and self.stage == 3:
            raise ValueError("it is of tensor parallelism at ZeRO stage 3, which is not read here")
        return len(held)

    def _check_names(self) -> None:
        """Hold the folder to the files that such a job writes.

        Raises:
            ValueError: some are missing, or belong to a kind of parallelism that is not read here.
        """
        present, tensors = {path.name for path in self.folder.iterdir()}, range(self.tensor_size)
        ranks = {int(match[2]) for name in present if (match := PARTS.fullmatch(name))}
        needed = {part_name(self.prefix, rank, tensor) for rank in ranks for tensor in tensors}
        needed |= {model_name(self.stage, 0, tensor) for tensor in tensors}
        known = {*needed, *(model_name(stage, rank) for stage in (0, 3) for rank in ranks)}
        if unknown := sorted(present - known):
            wrong = "saved with a kind of parallelism or offload that is not read here"
            raise ValueError(f"{', '.join(unknown[:4])}: {wrong}")
        if missing := sorted(needed - present):
            raise ValueError(f"{', '.join(missing[:4])}: missing")

    def _layout(self) -> Layout:
        shapes, processes = self.model["param_shapes"], len(self.parts)
        if self.stage == 3:
            group_of = {flat: number for number, group in enumerate(self.param_groups) for flat in group["params"]}
            return sliced([(group_of[flat], names) for flat, names in enumerate(shapes)], processes)
        paddings = self.parts[0].get("param_alignment_paddings") or [[0] * len(names) for names in shapes]
        return joined(shapes, processes, paddings)

    def _check_sizes(self) -> None:
        """Hold every rank's tensors to the layout: a part of another job would give weights that look like some."""
        counts = self.parts[0]["partition_count"]
        if any(count != len(self.parts) for count in (counts if isinstance(counts, list) else [counts])):
            raise ValueError(f"its {len(self.parts)} parts are not those of one job: they speak of {counts}")
        for rank, flats in enumerate(self._masters):
            sizes = [tensor.numel() for tensor in flats]
            if sizes != list(self._expected_sizes(rank)):
                raise ValueError(f"rank {rank}'s part does not fit the parameters' shapes: {sizes}")

    def _expected_sizes(self, rank: int) -> Iterator[int]:
        for number, flat in enumerate(self.layout.flats):
            unpadded = self.stage < 3 and not self.is_accumulating
            yield flat.size - (self.layout.padding(rank, number) if unpadded else 0)


def _part_names(folder: Path, tensor: int) -> list[str]:
    """Names of the optimizer's files that hold one piece of each parameter, by rank.

    Raises:
        ValueError: some are missing.
    """
    matches = [match for path in folder.iterdir() if (match := PARTS.fullmatch(path.name)) and int(match[3]) == tensor]
    ranks = {int(match[2]): match[0] for match in matches}
    if not ranks or sorted(ranks) != list(range(len(matches))):
        raise ValueError(f"the parts of ranks {sorted(ranks)} are no complete set")
    return [ranks[rank] for rank in sorted(ranks)]
