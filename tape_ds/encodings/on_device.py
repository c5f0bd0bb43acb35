"""Constants and limits of a forward that never waits for a GPU: a copy from the host's memory is a wait, and so is a
look at a number. Neither can be in a CUDA graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_LONGEST_MESSAGE = 250


class Constant:
    """An array that forwards read on any device.

    No module and no buffer: numpy, not tensors, so that no module cast, meta device or zero.Init can touch it.
    """

    def __init__(self, array: np.ndarray):
        self.array = array
        self.placed: dict[torch.device, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Drop the copies: elsewhere their devices may not exist."""
        return {**self.__dict__, "placed": {}}

    def on(self, device: torch.device) -> Tensor:
        """Return the array, copied to a GPU once.

        A compiled forward keeps no copy: it would lie in memory of the graph, and have the model compiled again.
        """
        if device in self.placed:
            return self.placed[device]
        there = torch.from_numpy(self.array).to(device)
        if device.type == "cuda" and not torch.compiler.is_compiling():
            self.placed[device] = there
        return there


def refuse_above(numbers: Tensor, limit: float, message: str) -> None:
    """Raise ValueError where a number is above a limit; a GPU checks without the host, and stops the process.

    ``message`` has ``{}`` in place of the largest number, which a GPU does not give.
    """
    above = (numbers > limit).any()
    if above.is_cuda:
        torch._assert_async(~above, message.format("(one too large)")[:_LONGEST_MESSAGE])
    elif bool(above):
        raise ValueError(message.format(numbers.max().item()))
