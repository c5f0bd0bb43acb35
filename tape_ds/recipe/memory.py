"""The section of every recipe that trades time for memory: what a model computes again, moves away or does in pieces.

How model states are sharded and offloaded is the DeepSpeed JSON's, see :mod:`.deepspeed`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from tape_ds.errors import Problem
from tape_ds.fields import Section, rule
from tape_ds.recipe.trainer import Whole

_OURS = {"every_n_layers": "checkpoint_layers", "offload": "checkpoint_offload"}
"""Keys of transformers' ``activation_checkpointing_kwargs`` that are fields here."""


class Memory(Section):
    """What is done for memory; how much each saves and costs is in docs/memory.md."""

    checkpoint_layers: Annotated[int, Field(ge=1)] | Literal["selective", "selective_matmuls"] = 1
    """With ``activation_checkpointing: true``, which blocks are computed again in the backward: every n-th, or all of
    them but for the outputs of attention (``selective``) and also of the linear maps (``selective_matmuls``)."""
    checkpoint_offload: bool = False
    """Keep those blocks' inputs, hidden and position state, in the host's memory meanwhile."""
    mlp_tiles: int = Field(1, ge=1)
    """Pieces of a row that feed-forwards work on one at a time, each computed again in the backward; for rows so long
    that the inside of a single feed-forward is too large."""
    expandable_segments: bool = True
    """Let CUDA's allocator grow its segments, which keeps memory from breaking into pieces that nothing fits into; an
    allocator that the environment configures is left alone."""
    force: bool = False
    """Start although more memory would be needed than the GPUs have, as far as that can be foreseen."""

    allow_cpu: bool = False
    """Train on a CPU what is refused there: a model of more than a billion parameters, or a run for which the launcher
    was given ``--num_gpus``. ``use_cpu: true`` and ``DS_ACCELERATOR=cpu`` say so as well."""

    @rule("activation_checkpointing", "checkpoint_layers", "checkpoint_offload")
    def _checkpointing(self, whole: Whole) -> Iterator[Problem]:
        if whole.trainer_value("activation_checkpointing"):
            return
        for name, default in (("checkpoint_layers", 1), ("checkpoint_offload", False)):
            if getattr(self, name) != default:
                wrong = "nothing is computed again: activation_checkpointing is off"
                yield Problem(name, getattr(self, name), wrong, "add activation_checkpointing: true, or remove it")

    @rule("activation_checkpointing_kwargs")
    def _elsewhere(self, whole: Whole) -> Iterator[Problem]:
        """transformers' own names for the same would be overruled."""
        for key, value in (whole.trainer_value("activation_checkpointing_kwargs") or {}).items():
            if key in _OURS:
                wrong = "this stack has a field for it, which knows of position states"
                yield Problem(f"activation_checkpointing_kwargs.{key}", value, wrong, f"use {_OURS[key]}")

    @rule("mlp_tiles", "activation_checkpointing", "checkpoint_layers", "window", "sequence_parallel_size")
    def _tiles(self, whole: Whole) -> Iterator[Problem]:
        tokens = -(-whole.window // whole.scale.sequence_parallel_size)
        if self.mlp_tiles > tokens:
            wrong = f"a process has {tokens:,} tokens of a row"
            yield Problem("mlp_tiles", self.mlp_tiles, wrong, "give 1 (whole rows) or more, up to that")
        elif (
            self.mlp_tiles > 1
            and whole.trainer_value("activation_checkpointing")
            and self.checkpoint_layers == "selective_matmuls"
        ):
            wrong = "checkpoint_layers = 'selective_matmuls' would keep what is inside every tile"
            yield Problem("mlp_tiles", self.mlp_tiles, wrong, "give checkpoint_layers: selective, or mlp_tiles: 1")
