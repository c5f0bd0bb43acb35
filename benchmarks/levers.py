"""What each memory lever saves and costs: a whole model's step, forward, loss and backward, with one lever at a time.

TAPE alone: how it compares with RoPE is :mod:`benchmarks.step`'s to say. ``ours`` is the model without any lever but
the chunked loss, which is always there; the others' times and peaks are divided by its own.

Peak memory is the device's. On a CPU, where the host's memory is the device's, the offload's copies are put where the
count of torch's allocator does not see them, as it does not see them on a GPU.
"""

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import models
from benchmarks.contest import Contest, Entry, Setting
from benchmarks.measure import Runner
from benchmarks.shapes import Model
from tape_ds.kernels.linear_cross_entropy import chunk_tokens
from tape_ds.recipe.sections import Memory
from tape_ds.training.memory_savings import InputOffload, Levers


class Lever(NamedTuple):
    """One way to spend time on memory."""

    memory: Memory | None = None
    """The recipe's section; None: no block is computed again."""
    tiles: int = 1
    """Without a section."""
    options: Mapping[str, Any] = MappingProxyType({})
    """What else the model is called with."""


NOTHING = {"ours": Lever()}
ON_LOGITS = {"ours, logits of the whole row": Lever(options={"skip_logits": False})}
"""The chunked loss undone."""
ON_BLOCKS = {
    "ours, every 2nd block again": Lever(Memory(checkpoint_layers=2)),
    "ours, selective_matmuls": Lever(Memory(checkpoint_layers="selective_matmuls")),
    "ours, selective": Lever(Memory(checkpoint_layers="selective")),
    "ours, every block again": Lever(Memory()),
    "ours, selective, inputs on the host": Lever(Memory(checkpoint_layers="selective", checkpoint_offload=True)),
    "ours, every block again, inputs on the host": Lever(Memory(checkpoint_offload=True)),
    "ours, 8 tiles": Lever(tiles=8),
    "ours, every block again, 8 tiles": Lever(Memory(mlp_tiles=8)),
    "ours, every block again, 8 tiles, inputs on the host": Lever(Memory(mlp_tiles=8, checkpoint_offload=True)),
}


def contest(shape: Model, setting: Setting) -> Contest:
    """TAPE with each lever that has something to do, by the attention that ``auto`` picks."""
    fields = models.sizes(shape)
    member = models.family(fields, setting)
    ids = models.tokens(shape, setting.device)
    backend = "sdpa" if setting.device.type == "cpu" else "auto"

    def build(lever: Lever) -> Runner:
        model = models.with_weights_of(member("tape", backend), fields, "tape", backend)
        apply(model, lever)
        return models.training(model, ids, lever.options)

    entries = [Entry(name, "tape", functools.partial(build, lever)) for name, lever in levers_of(shape).items()]
    return Contest(entries, {"tape": lambda: models.truth(member("tape", backend), models.first_tokens(ids))})


def levers_of(shape: Model) -> dict[str, Lever]:
    """Those that have something to do: on blocks, where there are several; on logits, where one chunk is not all."""
    several_chunks = shape.batch * shape.tokens > chunk_tokens(models.SIZES[shape.name]["vocab_size"])
    return NOTHING | (ON_LOGITS if several_chunks else {}) | (ON_BLOCKS if shape.layers > 1 else {})


def apply(model: nn.Module, lever: Lever) -> Levers:
    """Put the lever into the model; a CPU's copies go out of the count's sight."""
    memory = lever.memory or Memory(mlp_tiles=lever.tiles)
    device = next(model.parameters()).device
    levers = Levers(model, memory, checkpointing=lever.memory is not None, device=device)
    if levers.offload is not None and device.type == "cpu":
        hide_copies(levers.offload)
    return levers


def hide_copies(offload: InputOffload) -> None:
    """Have the offload's copies lie in memory that torch's CPU allocator has not given."""
    engine: Any = offload._copies
    own: Callable[[Tensor], tuple[Tensor, Any]] = engine._empty_cpu_like

    def empty(tensor: Tensor) -> tuple[Tensor, Any]:
        pool = engine._cpu_buffer_pool.get(engine._buffer_key(tensor))
        if pool:
            return own(tensor)
        return outside(tensor.shape, tensor.dtype), engine._buffer_key(tensor)

    engine._empty_cpu_like = empty


def outside(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """An empty tensor in Python's own memory."""
    size = max(math.prod(shape), 1) * dtype.itemsize
    return torch.frombuffer(bytearray(size), dtype=dtype)[: math.prod(shape)].view(shape)
