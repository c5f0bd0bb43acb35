"""Memory savings of a built model: recomputed blocks, their inputs in the host's memory, feed-forwards in tiles."""

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from deepspeed.runtime.activation_checkpointing.offload_activations import (
    CheckpointHiddenStatesOffload,
)
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tape_ds.encodings.base import PositionLayer
from tape_ds.methods.modules import modules_of
from tape_ds.methods.recompute import Recompute, use_recompute
from tape_ds.methods.tiling import use_tiles

SMALLEST = 1
"""Bytes from which a tensor is moved: every one that is not empty."""


class _Moved:
    """Autograd's stand-in for a tensor; where it is dropped unread, so is the copy."""

    def __init__(self, offload: "InputOffload", tensor_id: int):
        self.tensor_id = tensor_id
        for held in (offload._tracker, offload._fwd_stash, offload._keep_last):
            weakref.finalize(self, held.pop, tensor_id, None).atexit = False


class InputOffload(CheckpointHiddenStatesOffload):
    """Moves the inputs that blocks keep to the host's memory, and back for their backward: DeepSpeed's engine, on a CPU
    as well.

    Args:
        device: where the model computes.
        keep_last: newest tensors that stay there: the inputs of the last block.
    """

    def __init__(self, device: torch.device, keep_last: int = 2):
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

    def __call__(self) -> AbstractContextManager[None]:
        """Return the context for a block's inputs, for :func:`tape_ds.methods.recompute.use_recompute`."""

        def pack(tensor: Tensor) -> Tensor | _Moved:
            # a parameter among a block's inputs is the engine's to place
            tensor_id = None
            if not isinstance(tensor, nn.Parameter):
                tensor_id = self.offload_input(tensor)
            if tensor_id is None:
                return tensor
            return _Moved(self, tensor_id)

        def unpack(kept: Tensor | _Moved) -> Tensor:
            if isinstance(kept, _Moved):
                return self.restore_input(kept.tensor_id)
            return kept

        return saved_tensors_hooks(pack, unpack)

    @property
    def moved_bytes(self) -> int:
        """Moved to the host's memory so far."""
        return self.stats.offloaded_bytes

    @property
    def restored_bytes(self) -> int:
        """Moved back so far."""
        return self.stats.restored_bytes

    @property
    def held_bytes(self) -> int:
        """In the host's memory now."""
        return sum(copy.numel() * copy.element_size() for copy, *_ in self._tracker.values())


class MemorySavings:
    """The savings that were applied to one model.

    Args:
        model: built, wrapped by peft or not, its kernels chosen; changed in place.
        memory: a recipe's section (:class:`tape_ds.config.sections.Memory`).
        checkpointing: whether blocks are recomputed at all (``activation_checkpointing``).
        device: where it computes.
    """

    def __init__(self, model: nn.Module, memory: Any, *, checkpointing: bool, device: torch.device):
        self.memory = memory
        self.tiled = use_tiles(model, memory.mlp_tiles) if memory.mlp_tiles > 1 else []
        self.offload: InputOffload | None = None
        self.recompute: Recompute | None = None
        if checkpointing:
            if memory.checkpoint_offload:
                # next to the hidden states, a position state may travel from block to block
                layers = modules_of(model, PositionLayer)
                keep_last = 2 if any(layer.state_columns for layer in layers) else 1
                self.offload = InputOffload(device, keep_last)
            self.recompute = use_recompute(
                model, memory.checkpoint_layers, self.offload or nullcontext
            )

    def outline(self) -> list[str]:
        lines = [f"in {self.memory.mlp_tiles} tiles: {', '.join(self.tiled)}"] if self.tiled else []
        if self.recompute is not None:
            kept = ", selective" if self.recompute.selective else ""
            offloaded = ""
            if self.offload is not None:
                offloaded = ", their inputs in the host's memory"
            lines.append(
                f"computed again in the backward: {self.recompute.blocks} blocks{kept}{offloaded}"
            )
        return lines

    def without_effect(self) -> list[str]:
        """Return a line for each saving that has saved nothing by the end of the first step."""
        lines = []
        if self.offload is not None and self.offload.moved_bytes == 0:
            lines.append(
                "checkpoint_offload moves nothing: a backward needs the last block's inputs alone; remove it"
            )
        if self.recompute is not None and self.recompute.selective and self.recompute.kept == 0:
            lines.append(
                "checkpoint_layers: selective is as 1 here: attention is no operator that could "
                "be kept; give checkpoint_layers: 1, or attention_backend: sdpa"
            )
        return lines
