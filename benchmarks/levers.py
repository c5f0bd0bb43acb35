"""What each memory lever saves and costs: a whole model's step, forward, loss and backward, with one lever at a time.

Peak memory is the device's. On a CPU, where the host's memory is the device's, the offload's copies are put where the
count of torch's allocator does not see them, as it does not see them on a GPU.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import models
from benchmarks.contest import Contest, Entry, Setting, Truth
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import Model
from tape_ds import TapeForCausalLM
from tape_ds.training.levers import Levers
from tape_ds.training.offload import InputOffload
from tape_ds.training.recipe.memory import Memory

DEEP = {
    "vocab_size": 4_096,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 4,
    "max_position_embeddings": 2_048,
    "rms_norm_eps": 1e-5,
}
"""Narrow and deep: most of its memory is activations, as in a large model with long rows."""
SHAPES = {
    "cuda": [Model("7B", 8, 1, 8_192), Model("7B", 8, 1, 32_768)],
    "cpu": [Model("deep", 12, 1, 2_048)],
}
REPEATS = {"cuda": 10, "cpu": 3}


class Lever(NamedTuple):
    """One way to spend time on memory."""

    memory: Memory | None = None
    """The recipe's section; None: no block is computed again."""
    tiles: int = 1
    """Without a section."""
    whole_logits: bool = False
    """The loss of the whole row's logits, as it is without the chunked loss."""


LEVERS: dict[str, Lever] = {
    "nothing": Lever(),
    "logits of the whole row": Lever(whole_logits=True),
    "every 2nd block again": Lever(Memory(checkpoint_layers=2)),
    "selective_matmuls": Lever(Memory(checkpoint_layers="selective_matmuls")),
    "selective": Lever(Memory(checkpoint_layers="selective")),
    "every block again": Lever(Memory()),
    "selective, inputs on the host": Lever(Memory(checkpoint_layers="selective", checkpoint_offload=True)),
    "every block again, inputs on the host": Lever(Memory(checkpoint_offload=True)),
    "8 tiles": Lever(tiles=8),
    "every block again, 8 tiles": Lever(Memory(mlp_tiles=8)),
    "every block again, 8 tiles, inputs on the host": Lever(Memory(mlp_tiles=8, checkpoint_offload=True)),
}


def contest(shape: Model, setting: Setting) -> Contest:
    """Both encodings with each lever, by the attention that ``auto`` picks."""
    fields = sizes(shape)
    member = models.family(fields, setting)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, fields["vocab_size"], (shape.batch, shape.tokens), generator=generator).to(setting.device)
    backend = "sdpa" if setting.device.type == "cpu" else "auto"

    def build(encoding: str, lever: Lever) -> Runner:
        model = models.with_weights_of(member(encoding, backend), fields, encoding, backend)
        return _runner(model, lever, ids)

    entries = [
        Entry(name, encoding, functools.partial(build, encoding, lever))
        for encoding in models.ENCODINGS
        for name, lever in LEVERS.items()
    ]
    few = models.first_tokens(ids)

    def truth(encoding: str) -> Truth:
        return models.truth(member(encoding, backend), few)

    return Contest(entries, {encoding: functools.partial(truth, encoding) for encoding in models.ENCODINGS})


def sizes(shape: Model) -> dict[str, Any]:
    """The configuration's fields."""
    if shape.name != "deep":
        return models.sizes(shape)
    return DEEP | {"num_hidden_layers": shape.layers}


def _runner(model: TapeForCausalLM, lever: Lever, ids_BT: Tensor) -> Runner:
    apply(model, lever)
    few = models.first_tokens(ids_BT)
    loss = functools.partial(_loss, model, whole_logits=lever.whole_logits)

    def outcome() -> dict[str, Tensor]:
        with torch.no_grad():
            found = {"logits": model(input_ids=few, use_cache=False).logits.detach()}
        loss(few).backward()
        found |= models.gradients(model)
        model.zero_grad(set_to_none=True)
        return found

    return Runner(functools.partial(loss, ids_BT), Tensor.backward, outcome, bytes_of(list(model.parameters())))


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


def _loss(model: nn.Module, ids_BT: Tensor, whole_logits: bool) -> Tensor:
    model.zero_grad(set_to_none=True)
    options: Mapping[str, Any] = {"skip_logits": False} if whole_logits else {}
    return model(input_ids=ids_BT, labels=ids_BT, use_cache=False, **options).loss
