"""Inputs of blocks that are computed again, kept in the host's memory until the backward asks for them.

With every block computed again, what remains of a long row's activations is each block's input: the hidden states, and
beside them, just as large where an encoding has one, the position state. Both are moved here; DeepSpeed's own context
for transformers' blocks knows of the hidden states alone, and changes a class of transformers for the whole process
while it lasts. Its engine, which does the moving (pinned buffers that are used again, a stream of its own, the last
inputs left where they are because the backward begins with them), is used as it is.

On a CPU there is nowhere to move anything to: the same engine copies from memory to memory, so that what is tested here
is what runs there.
"""

import weakref
from contextlib import AbstractContextManager

import torch
from deepspeed.runtime.activation_checkpointing.offload_activations import CheckpointHiddenStatesOffload
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

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
        """The context under which a block's inputs are kept, for :func:`tape_ds.model.recompute.use_recompute`."""
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
