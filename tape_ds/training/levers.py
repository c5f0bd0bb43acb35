"""The memory levers of a recipe, put into a model that is built, and asked after the first step what they did.

A lever that moves nothing and keeps nothing costs time and saves none: that is an error, and not a line in a log.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerState

from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.model.positions.base import PositionLayer
from tape_ds.model.recompute import Recompute, use_recompute
from tape_ds.model.tiling import use_tiles
from tape_ds.recipe.memory import Memory
from tape_ds.training.environment import say
from tape_ds.training.offload import InputOffload


class Levers:
    """What was applied to one model.

    Args:
        model: built, wrapped by peft or not, its kernels chosen; changed in place.
        memory: the recipe's section.
        checkpointing: whether blocks are computed again at all (``activation_checkpointing``).
        device: where it computes.
    """

    def __init__(self, model: nn.Module, memory: Memory, *, checkpointing: bool, device: torch.device):
        self.memory = memory
        self.tiled = use_tiles(model, memory.mlp_tiles) if memory.mlp_tiles > 1 else []
        self.offload: InputOffload | None = None
        self.recompute: Recompute | None = None
        if not checkpointing:
            return
        if memory.checkpoint_offload:
            self.offload = InputOffload(device, keep_last=2 if _has_state(model) else 1)
        self.recompute = use_recompute(model, memory.checkpoint_layers, self.offload or nullcontext)

    def outline(self) -> list[str]:
        """What was done, in words, before the first step."""
        lines = [f"in {self.memory.mlp_tiles} tiles: {', '.join(self.tiled)}"] if self.tiled else []
        if self.recompute is not None:
            kept = f", {self.memory.checkpoint_layers}" if self.recompute.selective else ""
            lines.append(f"computed again in the backward: {self.recompute.blocks} blocks{kept}")
        return lines

    def account(self) -> list[str]:
        """What came of it, in words, after the first step.

        Raises:
            UserError: a lever that did nothing.
        """
        lines, problems = [], []
        if self.offload is not None:
            if self.offload.moved_bytes == 0:
                wrong = "the first step moved nothing: all that a backward needs are the last block's inputs"
                problems.append(
                    Problem("checkpoint_offload", True, wrong, "remove it; a deeper model has more to move")
                )
            lines.append(f"moved to the host's memory in the first step: {self.offload.moved_bytes:,} bytes a rank")
        if self.recompute is not None and self.recompute.selective:
            if self.recompute.kept == 0:
                name = self.memory.checkpoint_layers
                wrong = "the first step kept nothing: attention ran as no operator of its own"
                remedy = "give checkpoint_layers: 1, or attention_backend: sdpa"
                problems.append(Problem("checkpoint_layers", name, wrong, remedy))
            lines.append(f"results kept in the first step instead of computed again: {self.recompute.kept:,}")
        try:
            raise_if_any(problems)
        except UserError as error:
            error.stands = "one step was taken, nothing was saved"
            raise
        return lines


def _has_state(model: nn.Module) -> bool:
    """Whether a position state travels from block to block beside the hidden states."""
    return any(isinstance(module, PositionLayer) and module.state_columns() for module in model.modules())


class ApplyLevers(TrainerCallback):
    """Applies a recipe's levers when training begins, after transformers has switched its checkpointing on, and says
    after the first step what they did."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self.levers: Levers | None = None
        self.accounted = False

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Apply them."""
        checkpointing = bool(args.activation_checkpointing)
        self.levers = Levers(kwargs["model"], self.memory, checkpointing=checkpointing, device=args.device)
        self._say(self.levers.outline(), state)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Once: what they did.

        Raises:
            UserError: a lever that did nothing; on every rank alike.
        """
        if self.levers is not None and not self.accounted:
            self.accounted = True
            self._say(self.levers.account(), state)

    def _say(self, lines: list[str], state: TrainerState) -> None:
        for line in lines if state.is_world_process_zero else []:
            say(f"memory: {line}")
