"""The tensors of one update of the position state, and the memory that its results go to.

Shape letters: B batch, T tokens, H query heads, G key/value heads, K head size, I position rank.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tape_ds.kernels.strides import empty_rows, near, rows


class Inputs(NamedTuple):
    """The tensors of ``position_mix``, in its order; both members of an update may be missing."""

    start: Tensor
    """[B or 1, 1 or G, T, K]"""
    state: Tensor | None
    """[B, G, T, K]"""
    moved: Tensor | None
    """[B, H, T, K]"""
    attend: Tensor | None
    """[G, H]"""
    gate: Tensor | None
    """[B, T, I]"""
    expand: Tensor | None
    """[I, G]"""
    contract: Tensor | None
    """[G, I]"""

    def sizes(self) -> tuple[int, int, int, int]:
        """(B, G, T, K) of the result."""
        weight = self.contract if self.attend is None else self.attend
        if weight is None:
            raise ValueError(
                "no update: give moved and attend, or gate, expand and contract, or both"
            )
        batch = next(x.shape[0] for x in (self.state, self.moved, self.gate) if x is not None)
        return batch, weight.shape[0], self.start.shape[2], self.start.shape[3]

    def heads(self) -> int:
        """H, or 1 where attention updates nothing."""
        return 1 if self.attend is None else self.attend.shape[1]

    def rank(self) -> int:
        """I, or 1 without a feed-forward."""
        return 1 if self.contract is None else self.contract.shape[1]

    def model(self) -> tuple[int, int, int, int]:
        """(H, G, K, I), what a kernel is compiled for."""
        _, groups, _, width = self.sizes()
        return self.heads(), groups, width, self.rank()

    def wide(self) -> torch.dtype:
        any_double = any(x is not None and x.dtype == torch.float64 for x in self)
        return torch.float64 if any_double else torch.float32

    def with_rows(self) -> Inputs:
        """Return activations with contiguous rows and contiguous weights, copied only where necessary."""
        start, state, moved = (
            None if x is None else near(x) for x in (self.start, self.state, self.moved)
        )
        gate = None if self.gate is None else rows(self.gate)
        weights = [
            None if x is None else x.contiguous() for x in (self.attend, self.expand, self.contract)
        ]
        attend, expand, contract = weights
        assert start is not None
        return Inputs(start, state, moved, attend, gate, expand, contract)

    def check(self) -> None:
        """Raise ValueError where half of an update is given, or none, or the shapes do not fit each other."""
        start, state, moved, attend, gate, expand, contract = self
        if (
            len({moved is None, attend is None}) > 1
            or len({gate is None, expand is None, contract is None}) > 1
        ):
            raise ValueError(
                "give both of moved and attend, or neither; all of gate, expand and contract, or none"
            )
        batch, groups, tokens, width = sizes = self.sizes()
        if start.shape[0] not in (1, batch) or start.shape[1] not in (1, groups):
            raise ValueError(
                f"start is {tuple(start.shape)}, not [{batch} or 1, {groups} or 1, {tokens}, {width}]"
            )
        expected = {
            "state": (state, sizes),
            "moved": (moved, (batch, self.heads(), tokens, width)),
            "gate": (gate, (batch, tokens, self.rank())),
            "expand": (expand, (self.rank(), groups)),
            "contract": (contract, (groups, self.rank())),
        }
        for name, (tensor, shape) in expected.items():
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"{name} is {tuple(tensor.shape)}, not {tuple(shape)}")


def empty(inputs: Inputs, dtype: torch.dtype) -> Tensor:
    """Memory for a state: [B, T, G, K], so that a token's state is one matrix, seen as [B, G, T, K]."""
    batch, groups, tokens, width = inputs.sizes()
    return inputs.start.new_empty(batch, tokens, groups, width, dtype=dtype).transpose(1, 2)


def empty_gradients(inputs: Inputs, needed: list[bool]) -> list[Tensor | None]:
    """Memory for the gradients of state, moved, attend, gate, expand and contract; None where none is needed."""
    gradients: list[Tensor | None] = []
    for x, wanted in zip(inputs[1:], needed, strict=True):
        if x is None or not wanted:
            gradients.append(None)
        elif x.dim() == 4:
            gradients.append(empty_rows(x))
        else:
            gradients.append(torch.empty_like(x, memory_format=torch.contiguous_format))
    return gradients
