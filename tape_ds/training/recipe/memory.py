"""The section of every recipe that trades time for memory: what a model computes again, moves away or does in pieces.

How model states are sharded and offloaded is the DeepSpeed JSON's, see :mod:`.sharding_checks`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tape_ds.errors import Problem
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from tape_ds.training.recipe.recipe import Recipe

CHECKS = Checks()

_OURS = {"every_n_layers": "checkpoint_layers", "offload": "checkpoint_offload"}
"""Keys of transformers' ``activation_checkpointing_kwargs`` that are fields here."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is done for memory; how much each saves and costs is in docs/memory.md."""

    checkpoint_layers: int | Literal["selective", "selective_matmuls"] = 1
    """With ``activation_checkpointing: true``, which blocks are computed again in the backward: every n-th, or all of
    them but for the outputs of attention (``selective``) and also of the linear maps (``selective_matmuls``)."""
    checkpoint_offload: bool = False
    """Keep those blocks' inputs, hidden and position state, in the host's memory meanwhile."""
    mlp_tiles: int = 1
    """Pieces of a row that feed-forwards work on one at a time, each computed again in the backward; for rows so long
    that the inside of a single feed-forward is too large."""
    expandable_segments: bool = True
    """Let CUDA's allocator grow its segments, which keeps memory from breaking into pieces that nothing fits into; an
    allocator that the environment configures is left alone."""
    force: bool = False
    """Start although more memory would be needed than the GPUs have, as far as that can be foreseen."""


@CHECKS.reads("activation_checkpointing", "checkpoint_layers", "checkpoint_offload")
def _checkpointing(recipe: "Recipe") -> Iterator[Problem]:
    memory = recipe.memory
    if isinstance(memory.checkpoint_layers, int) and memory.checkpoint_layers < 1:
        remedy = "give 1 (every block) or more, selective, or selective_matmuls"
        yield Problem("checkpoint_layers", memory.checkpoint_layers, "no block has such a number", remedy)
    if not recipe.trainer_value("activation_checkpointing"):
        for name, default in (("checkpoint_layers", 1), ("checkpoint_offload", False)):
            if getattr(memory, name) != default:
                wrong = "nothing is computed again: activation_checkpointing is off"
                yield Problem(name, getattr(memory, name), wrong, "add activation_checkpointing: true, or remove it")


@CHECKS.reads("activation_checkpointing_kwargs")
def _elsewhere(recipe: "Recipe") -> Iterator[Problem]:
    """transformers' own names for the same would be overruled."""
    given = recipe.training_kwargs.get("activation_checkpointing_kwargs")
    for key, value in (given if isinstance(given, Mapping) else {}).items():
        if key in _OURS:
            wrong = "this stack has a field for it, which knows of position states"
            yield Problem(f"activation_checkpointing_kwargs.{key}", value, wrong, f"use {_OURS[key]}")


@CHECKS.reads("mlp_tiles", "window", "sequence_parallel_size", "activation_checkpointing", "checkpoint_layers")
def _tiles(recipe: "Recipe") -> Iterator[Problem]:
    tiles, layers = recipe.memory.mlp_tiles, recipe.memory.checkpoint_layers
    checkpointing = recipe.trainer_value("activation_checkpointing")
    tokens = -(-recipe.window // max(recipe.scale.sequence_parallel_size, 1))
    if not 1 <= tiles <= tokens:
        wrong = f"a process has {tokens:,} tokens of a row"
        yield Problem("mlp_tiles", tiles, wrong, "give 1 (whole rows) or more, up to that")
    elif tiles > 1 and checkpointing and layers == "selective_matmuls":
        wrong = "checkpoint_layers = 'selective_matmuls' would keep what is inside every tile"
        yield Problem("mlp_tiles", tiles, wrong, "give checkpoint_layers: selective, or mlp_tiles: 1")
