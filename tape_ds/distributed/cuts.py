"""Parameters of which every process of a tensor-parallel group has a piece, and how they become whole again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tape_ds.distributed.group import RankGroup


@dataclass(frozen=True)
class TensorCut:
    """How a parameter was cut."""

    group: RankGroup
    dim: int
    sizes: tuple[int, ...]
    """Of each process's piece along ``dim``."""

    def whole(self, piece: Tensor) -> Tensor:
        """Return all pieces put together; every process of the group must call it."""
        missing = max(self.sizes) - piece.shape[self.dim]
        padded = F.pad(piece.detach(), (*(0, 0) * (piece.dim() - 1 - self.dim), 0, missing)) if missing else piece
        pieces = zip(self.group.gather(padded.detach()), self.sizes, strict=True)
        return torch.cat([each.narrow(self.dim, 0, size) for each, size in pieces], dim=self.dim)

    def numel(self, piece: Tensor) -> int:
        """Return numbers of the whole."""
        return piece.numel() // piece.shape[self.dim] * sum(self.sizes)


def cut(parameter: nn.Parameter, dim: int, sizes: Sequence[int], group: RankGroup) -> None:
    """Keep this process's piece, in place: whoever holds the parameter sees it. A parameter is cut once, however often
    it is tied."""
    if cut_of(parameter) is not None:
        return
    parameter.data = parameter.data.split(list(sizes), dim=dim)[group.index].clone()
    parameter.grad = None
    marked: Any = parameter
    marked.tensor_cut = TensorCut(group, dim, tuple(sizes))
    marked.tensor_model_parallel = True  # by which an engine's norm of the gradients counts every piece, others once


def cut_of(parameter: Tensor) -> TensorCut | None:
    """Return how it was cut; None where it is whole in every process."""
    found: TensorCut | None = getattr(parameter, "tensor_cut", None)
    return found


def whole_numel(parameter: Tensor) -> int:
    """Return numbers of the whole parameter, a piece of which every process has, or a shard of ZeRO-3's."""
    found = cut_of(parameter)
    numel: int = getattr(parameter, "ds_numel", parameter.numel()) if found is None else found.numel(parameter)
    return numel


def described(model: nn.Module) -> dict[str, Any]:
    """For a checkpoint: how many processes share the model, and by parameter name along which dimension it was cut
    into pieces of which sizes. Empty where nothing is cut."""
    cuts = {name: found for name, each in model.named_parameters() if (found := cut_of(each)) is not None}
    if not cuts:
        return {}
    size = next(iter(cuts.values())).group.size
    return {"size": size, "cuts": {name: [each.dim, list(each.sizes)] for name, each in cuts.items()}}
