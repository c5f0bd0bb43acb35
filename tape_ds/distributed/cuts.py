"""Cut parameters into pieces for the processes of a tensor-parallel group, and put them together again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tape_ds.distributed.group import RankGroup


@dataclass(frozen=True)
class TensorCut:
    """How a parameter was cut: ``sizes`` are those of the pieces along ``dim``, by process."""

    group: RankGroup
    dim: int
    sizes: tuple[int, ...]

    def whole(self, piece: Tensor) -> Tensor:
        """Return the whole parameter; every process of the group must call it."""
        padded = piece.detach()
        # gather takes pieces of one size: the smaller ones get zeros at the end of their dimension
        missing = max(self.sizes) - piece.shape[self.dim]
        if missing:
            padded = F.pad(padded, (*(0, 0) * (piece.dim() - 1 - self.dim), 0, missing))
        pieces = zip(self.group.gather(padded), self.sizes, strict=True)
        return torch.cat([part.narrow(self.dim, 0, size) for part, size in pieces], dim=self.dim)

    def numel(self, piece: Tensor) -> int:
        return piece.numel() // piece.shape[self.dim] * sum(self.sizes)


def cut_parameter(
    parameter: nn.Parameter, dim: int, sizes: Sequence[int], group: RankGroup
) -> None:
    """Keep this process's piece, in place; a tied parameter is cut once."""
    if cut_of(parameter) is not None:
        return
    parameter.data = parameter.data.split(list(sizes), dim=dim)[group.index].clone()
    parameter.grad = None
    marked: Any = parameter
    marked.tensor_cut = TensorCut(group, dim, tuple(sizes))
    # DeepSpeed's gradient norm then counts every piece, and other parameters once
    marked.tensor_model_parallel = True


def cut_of(parameter: Tensor) -> TensorCut | None:
    """Return how a parameter was cut; None if it is whole."""
    tensor_cut: TensorCut | None = getattr(parameter, "tensor_cut", None)
    return tensor_cut


def whole_numel(parameter: Tensor) -> int:
    """Return the number of elements of the whole parameter, given a piece of it, or a shard of ZeRO-3's."""
    tensor_cut = cut_of(parameter)
    numel: int = getattr(parameter, "ds_numel", parameter.numel())
    if tensor_cut is not None:
        numel = tensor_cut.numel(parameter)
    return numel


def described(model: nn.Module) -> dict[str, Any]:
    """Return what a checkpoint stores: the group's size, and dimension and sizes by parameter name; empty if nothing is
    cut."""
    cuts = {}
    size = 0
    for name, parameter in model.named_parameters():
        tensor_cut = cut_of(parameter)
        if tensor_cut is not None:
            cuts[name] = [tensor_cut.dim, list(tensor_cut.sizes)]
            size = tensor_cut.group.size
    if not cuts:
        return {}
    return {"size": size, "cuts": cuts}
