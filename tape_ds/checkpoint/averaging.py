"""The mean of a run's last checkpoints, tensor by tensor.

A soup (Wortsman et al. 2022, arXiv:2203.05482) of one run: OLMo 3's long stage (arXiv:2512.13961) takes its last three
checkpoints. The trained tensors are read from the files one at a time, summed in fp32, and put into the model. Of
adapters the two factors are averaged apart, which is not quite the mean of their products.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import deepspeed
import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from torch import Tensor, nn

from tape_ds.checkpoint import format
from tape_ds.checkpoint.trained import files_of_weights
from tape_ds.distributed.cuts import cut_of
from tape_ds.models.files import weight_files


def scheduled(steps: int, every: int, more: Iterable[int] = ()) -> list[int]:
    """Return the steps of a run of ``steps`` that save, rising: each ``every``-th one, those of ``more``, the last."""
    regular = range(every, steps + 1, every)
    return sorted({*regular, *(step for step in more if step <= steps), steps})


def last(output: Path, steps: Sequence[int]) -> list[Path]:
    """Return the checkpoints of these steps. Raises ValueError: one is missing, or its trained weights are damaged."""
    there = {format.step_of(folder): folder for folder in format.committed(output)}
    wrong = [f"checkpoint-{step} is missing" for step in steps if step not in there]
    for step in steps:
        if step in there:
            names = [file.name for file in files_of_weights(there[step])]
            damaged = format.corrupt_files(there[step], format.read(there[step]), names)
            wrong += [f"in checkpoint-{step} {each}" for each in damaged]
    if wrong:
        raise ValueError("; ".join(wrong))
    return [there[step] for step in steps]


def fingerprints(folders: Sequence[Path]) -> dict[str, str]:
    """Return the fingerprint of each file of trained weights in the checkpoints, by ``checkpoint-N/FILE``."""
    files = [file for folder in folders for file in files_of_weights(folder)]
    return {f"{file.parent.name}/{file.name}": weight_files.fingerprint(file) for file in files}


def means(folders: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the mean of every trained tensor, fp32 (fp64 for fp64), a tensor at a time. Raises ValueError:
    the checkpoints do not hold the same tensors."""
    names = [_where(folder) for folder in folders]
    if any(other.keys() != names[0].keys() for other in names[1:]):
        raise ValueError(f"{', '.join(folder.name for folder in folders)} hold different tensors")
    for name in sorted(names[0]):
        total: Tensor | None = None
        for where in names:
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
    put = set()
    for name, mean in means(folders):
        if name not in places:
            raise ValueError(f"{folders[0].name} holds {name}, which this model does not train")
        parameter = places[name]
        cut = cut_of(parameter)
        if cut is not None:
            mean = mean.split(list(cut.sizes), dim=cut.dim)[cut.group.index]
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.data.copy_(mean)
        put.add(id(parameter))
    if missing := [name for name, parameter in places.items() if id(parameter) not in put]:
        raise ValueError(f"{folders[0].name} lacks {', '.join(missing[:8])}")


def _places(model: nn.Module, names: Sequence[str]) -> Mapping[str, nn.Parameter]:
    """Return the trained parameters by the names that files have; tied ones by each of theirs."""
    trained = {id(parameter) for name, parameter in model.named_parameters() if name in set(names)}
    own = {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if id(parameter) in trained
    }
    # peft's files leave the adapter's name out of every key
    if isinstance(model, PeftModel):
        return get_peft_model_state_dict(model, state_dict=own, save_embedding_layers=False)
    return own
