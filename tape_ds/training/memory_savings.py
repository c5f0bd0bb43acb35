"""The memory savings of a recipe, put into a model that is built, and asked after the first step what they did.

A saving that moves nothing and keeps nothing costs time and saves no memory. The losses are right all the same, so the
run continues, and a line of the log names the remedy.
"""

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from deepspeed.runtime.activation_checkpointing.offload_activations import CheckpointHiddenStatesOffload
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import TrainerCallback, TrainerState

from tape_ds.config.sections import Memory
from tape_ds.encodings.base import PositionLayer
from tape_ds.methods.recompute import Recompute, use_recompute
from tape_ds.methods.tiling import use_tiles
from tape_ds.training.environment import say

SMALLEST = 1
"""Bytes from which a tensor is moved: every one that is not empty."""


class _Copies(CheckpointHiddenStatesOffload):
    """DeepSpeed's engine, on a CPU as well."""

    def __init__(self, device: torch.device, keep_last: int):
        self.on_cpu = device.type == "cpu"
        super().__init__(
            use_pin_memory=not self.on_cpu,
            use_streams=not self.on_cpu,
            min_offload_bytes=SMALLEST,
            keep_last_count=keep_last,
        )

    def _should_skip(self, tensor: Tensor) -> bool:
        if not self.on_cpu:
            return super()._should_skip(tensor)
        overlapping = tensor.numel() > 1 and 0 in tensor.stride()
        return tensor.device.type != "cpu" or self._num_bytes(tensor) < SMALLEST or overlapping

    def forget(self, tensor_id: int) -> None:
        """Let go of a tensor that no backward will ask for."""
        for held in (self._tracker, self._fwd_stash, self._keep_last):
            held.pop(tensor_id, None)


class _Moved:
    """What autograd keeps in place of a tensor; where it is dropped unread, so is the copy."""

    def __init__(self, copies: _Copies, tensor_id: int):
        self.tensor_id = tensor_id
        weakref.finalize(self, copies.forget, tensor_id).atexit = False


class InputOffload:
    """Moves what is kept under it, and counts it.

    Args:
        device: where the model computes.
        keep_last: tensors, the newest, that stay there: the inputs of the last block.
    """

    def __init__(self, device: torch.device, keep_last: int = 2):
        self._copies = _Copies(device, keep_last)

    def __call__(self) -> AbstractContextManager[None]:
        """The context under which a block's inputs are kept, for :func:`tape_ds.methods.recompute.use_recompute`."""
        return saved_tensors_hooks(self._pack, self._unpack)

    @property
    def moved_bytes(self) -> int:
        """To the host's memory so far."""
        return self._copies.stats.offloaded_bytes

    @property
    def restored_bytes(self) -> int:
        """Back from there so far."""
        return self._copies.stats.restored_bytes

    @property
    def held_bytes(self) -> int:
        """In the host's memory now, for a backward to come."""
        return sum(copy.numel() * copy.element_size() for copy, *_ in self._copies._tracker.values())

    def _pack(self, tensor: Tensor) -> Tensor | _Moved:
        # a parameter among a block's inputs is the engine's to place
        tensor_id = None if isinstance(tensor, nn.Parameter) else self._copies.offload_input(tensor)
        return tensor if tensor_id is None else _Moved(self._copies, tensor_id)

    def _unpack(self, kept: Tensor | _Moved) -> Tensor:
        return self._copies.restore_input(kept.tensor_id) if isinstance(kept, _Moved) else kept


class MemorySavings:
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
            # beside the hidden states, a position state may travel from block to block
            layers = [module for module in model.modules() if isinstance(module, PositionLayer)]
            self.offload = InputOffload(device, keep_last=2 if any(layer.state_columns() for layer in layers) else 1)
        self.recompute = use_recompute(model, memory.checkpoint_layers, self.offload or nullcontext)

    def outline(self) -> list[str]:
        """Return what was done, in words, before the first step."""
        lines = [f"in {self.memory.mlp_tiles} tiles: {', '.join(self.tiled)}"] if self.tiled else []
        if self.recompute is not None:
            kept = f", {self.memory.checkpoint_layers}" if self.recompute.selective else ""
            lines.append(f"computed again in the backward: {self.recompute.blocks} blocks{kept}")
        return lines

    def account(self) -> list[str]:
        """Return what came of it, in words, after the first step; where that is nothing, with the remedy."""
        lines = []
        if self.offload is not None:
            moved = self.offload.moved_bytes
            lines.append(f"moved to the host's memory in the first step: {moved:,} bytes a rank")
            if moved == 0:
                lines[-1] += (
                    "; checkpoint_offload saves nothing here, since a backward needs the last block's inputs alone: "
                    "remove it from the recipe"
                )
        if self.recompute is not None and self.recompute.selective:
            kept = self.recompute.kept
            lines.append(f"results kept in the first step instead of computed again: {kept:,}")
            if kept == 0:
                lines[-1] += (
                    f"; checkpoint_layers: {self.memory.checkpoint_layers} is as 1 here, since attention is no "
                    "operator that could be kept: give checkpoint_layers: 1, or attention_backend: sdpa"
                )
        return lines


class ApplyMemorySavings(TrainerCallback):
    """Applies a recipe's savings when training begins, after transformers has switched its checkpointing on, and says
    after the first step what they did."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self.savings: MemorySavings | None = None
        self.accounted = False

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Apply them."""
        checkpointing = bool(args.gradient_checkpointing)  # transformers before 5.23 has no other name
        self.savings = MemorySavings(kwargs["model"], self.memory, checkpointing=checkpointing, device=args.device)
        self._say(self.savings.outline(), state)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Once: what they did."""
        if self.savings is not None and not self.accounted:
            self.accounted = True
            self._say(self.savings.account(), state)

    def _say(self, lines: list[str], state: TrainerState) -> None:
        for line in lines if state.is_world_process_zero else []:
            say(f"memory: {line}")
