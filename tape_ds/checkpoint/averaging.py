"""The mean of a run's last checkpoints, tensor by tensor.

A soup (Wortsman et al. 2022, arXiv:2203.05482) of one run: OLMo 3's long stage (arXiv:2512.13961) takes its last three
checkpoints. The trained tensors are read from the files one at a time, summed in fp32, and put into the model. Of
adapters the two factors are averaged apart, which is not quite the mean of their products.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import deepspeed
import torch
from peft import PeftModel
from safetensors import safe_open
from torch import Tensor, nn

from tape_ds.checkpoint import format
from tape_ds.checkpoint.trained import (
    by_every_name,
    by_file_names,
    files_of_weights,
    persistent_buffers,
)
from tape_ds.distributed.cuts import cut_of
from tape_ds.models.files import weight_files


def scheduled(steps: int, every: int, more: Iterable[int] = ()) -> list[int]:
    """Return the steps of a run of ``steps`` that save, rising: each ``every``-th one, those of ``more``, the last."""
    regular = range(every, steps + 1, every)
    return sorted({*regular, *(step for step in more if step <= steps), steps})


def last(output: Path, steps: Sequence[int]) -> list[Path]:
    """Return the checkpoints of these steps. Raises ValueError: one is missing, or its trained weights are damaged."""
    by_step = {format.step_of(folder): folder for folder in format.committed(output)}
    faults = [f"checkpoint-{step} is missing" for step in steps if step not in by_step]
    folders = [by_step[step] for step in steps if step in by_step]
    for folder in folders:
        # only what is averaged: an optimizer's state is many times as large, and not read
        names = [file.name for file in files_of_weights(folder)]
        for damage in format.corrupt_files(folder, format.read(folder), names):
            faults.append(f"in {folder.name} {damage}")
    if faults:
        raise ValueError("; ".join(faults))
    return folders


def fingerprints(folders: Sequence[Path]) -> dict[str, str]:
    """Return the fingerprint of each file of trained weights in the checkpoints, by ``checkpoint-N/FILE``."""
    found = {}
    for folder in folders:
        for file in files_of_weights(folder):
            found[f"{folder.name}/{file.name}"] = weight_files.fingerprint(file)
    return found


def means(folders: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the mean of every trained tensor, fp32 (fp64 for fp64), a tensor at a time. Raises ValueError:
    the checkpoints do not hold the same tensors."""
    files_by_name = list(map(_where, folders))
    first = files_by_name[0]
    if any(other.keys() != first.keys() for other in files_by_name):
        raise ValueError(f"{', '.join(folder.name for folder in folders)} hold different tensors")
    for name in sorted(first):
        # opened again for each tensor: of all checkpoints at once, no more than this one is in memory
        total: Tensor | None = None
        for where in files_by_name:
            with safe_open(where[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
            wide = tensor.double() if tensor.dtype == torch.float64 else tensor.float()
            total = wide if total is None else total + wide
        assert total is not None
        yield name, total / len(folders)


def _where(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of a folder of trained weights."""
    found: dict[str, Path] = {}
    for path in files_of_weights(folder):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    return found


@torch.no_grad()
def put_mean(folders: Sequence[Path], model: nn.Module, names: Sequence[str]) -> None:
    """Replace the trained parameters of ``model``, these names, by their means; every rank must call it, and read the
    same disk. Parameters that ZeRO-3 has partitioned, or that ranks hold in pieces, are put together one at a time.
    Raises ValueError: the checkpoints hold other tensors."""
    places = _places(model, names)
    kept = persistent_buffers(model)
    put = set()
    for name, mean in means(folders):
        if name in kept:
            continue
        if name not in places:
            raise ValueError(f"{folders[0].name} holds {name}, which this model does not train")
        parameter = places[name]
        cut = cut_of(parameter)
        if cut is not None:
            mean = mean.split(list(cut.sizes), dim=cut.dim)[cut.group.index]
        # rank 0's change is what every rank gets when its shards are cut again
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.data.copy_(mean)
        put.add(id(parameter))
    if missing := [name for name, parameter in places.items() if id(parameter) not in put]:
        raise ValueError(f"{folders[0].name} lacks {', '.join(missing[:8])}")


def _places(model: nn.Module, names: Sequence[str]) -> Mapping[str, nn.Parameter]:
    """Return the trained parameters by the names that files have; tied ones by each of theirs."""
    parameters = dict(model.named_parameters())
    trained = {name: parameters[name] for name in names if name in parameters}
    if isinstance(model, PeftModel):
        return by_file_names(model, trained)
    return by_every_name(model, trained)
