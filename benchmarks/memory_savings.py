"""What each memory saving saves and costs: a whole model's step, forward, loss and backward, with one saving at a time.

TAPE alone: how it compares with RoPE is :mod:`benchmarks.step`'s to say. ``ours`` is the model without any saving but
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
from benchmarks.benchmark_case import BenchmarkCase, CaseEntry, Setting
from benchmarks.measure import Runner
from benchmarks.shapes import BenchmarkModel
from tape_ds.kernels.linear_cross_entropy import chunk_tokens
from tape_ds.recipe.sections import Memory
from tape_ds.training.memory_savings import InputOffload, MemorySavings


class Saving(NamedTuple):
    """One way to spend time on memory."""

    memory: Memory | None = None
    """The recipe's section; None: no block is computed again."""
    tiles: int = 1
    """Without a section."""
    options: Mapping[str, Any] = MappingProxyType({})
    """What else the model is called with."""


NOTHING = {"ours": Saving()}
ON_LOGITS = {"ours, logits of the whole row": Saving(options={"skip_logits": False})}
"""The chunked loss undone."""
ON_BLOCKS = {
    "ours, every 2nd block again": Saving(Memory(checkpoint_layers=2)),
    "ours, selective_matmuls": Saving(Memory(checkpoint_layers="selective_matmuls")),
    "ours, selective": Saving(Memory(checkpoint_layers="selective")),
    "ours, every block again": Saving(Memory()),
    "ours, selective, inputs on the host": Saving(Memory(checkpoint_layers="selective", checkpoint_offload=True)),
    "ours, every block again, inputs on the host": Saving(Memory(checkpoint_offload=True)),
    "ours, 8 tiles": Saving(tiles=8),
    "ours, every block again, 8 tiles": Saving(Memory(mlp_tiles=8)),
    "ours, every block again, 8 tiles, inputs on the host": Saving(Memory(mlp_tiles=8, checkpoint_offload=True)),
}


def case(shape: BenchmarkModel, setting: Setting) -> BenchmarkCase:
    """TAPE with each saving that has something to do, by the attention that ``auto`` picks."""
    fields = models.sizes(shape)
    member = models.family(fields, setting)
    ids = models.tokens(shape, setting.device)
    backend = "sdpa" if setting.device.type == "cpu" else "auto"

    def build(saving: Saving) -> Runner:
        model = models.with_weights_of(member("tape", backend), fields, "tape", backend)
        apply(model, saving)
        return models.training(model, ids, saving.options)

    entries = [CaseEntry(name, "tape", functools.partial(build, saving)) for name, saving in savings_of(shape).items()]
    return BenchmarkCase(entries, {"tape": lambda: models.truth(member("tape", backend), models.first_tokens(ids))})


def savings_of(shape: BenchmarkModel) -> dict[str, Saving]:
    """Return those that have something to do: on blocks, where there are several; on logits, where one chunk is not
    all."""
    several_chunks = shape.batch * shape.tokens > chunk_tokens(models.SIZES[shape.name]["vocab_size"])
    return NOTHING | (ON_LOGITS if several_chunks else {}) | (ON_BLOCKS if shape.layers > 1 else {})


def apply(model: nn.Module, saving: Saving) -> MemorySavings:
    """Put the saving into the model; a CPU's copies go out of the count's sight."""
    memory = saving.memory or Memory(mlp_tiles=saving.tiles)
    device = next(model.parameters()).device
    savings = MemorySavings(model, memory, checkpointing=saving.memory is not None, device=device)
    if savings.offload is not None and device.type == "cpu":
        hide_copies(savings.offload)
    return savings


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
    """Return an empty tensor in Python's own memory."""
    size = max(math.prod(shape), 1) * dtype.itemsize
    return torch.frombuffer(bytearray(size), dtype=dtype)[: math.prod(shape)].view(shape)
