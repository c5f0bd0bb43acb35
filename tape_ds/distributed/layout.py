"""The layout of a job: which process does and holds what; shared by recipes, trainers and planners.

Neighbouring ranks work on the same sequences, so that what they exchange in every layer stays within a node if
possible.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tape_ds.errors import Problem

# fields of every recipe
SEQUENCE = "sequence_parallel_size"
TENSOR = "tensor_parallel_size"

Offload = Literal["none", "cpu", "nvme"]
Layers = Literal[1, "selective"]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """DeepSpeed's own buffers; sizes in elements. Defaults are those of ``ds_configs/zero1`` and ``zero2``, and
    DeepSpeed's own."""

    reduce_bucket: int = 200_000_000
    # communication overlaps computation: ZeRO-1 and 2 then have two buckets
    overlap: bool = True
    prefetch_bucket: int = 50_000_000
    # ZeRO-3: gathered weights that may be there at once
    max_live: int = 1_000_000_000
    # ZeRO-3: smaller parameters are never given back
    persistence: int = 100_000
    # ZeRO-3: weights that the optimizer steps on at once
    sub_group: int = 1_000_000_000
    # ZeRO++ (hpZ): ranks that share a second copy of the weights; 1: none
    secondary: int = 1

    @classmethod
    def zero_3(cls, hidden: int) -> "Engine":
        """Return the sizes that transformers fills in for "auto", as in ``ds_configs/zero3``."""
        square = hidden * hidden
        return cls(reduce_bucket=square, prefetch_bucket=int(0.9 * square), persistence=10 * hidden)


@dataclass(frozen=True)
class Layout:
    """The processes of a job, and what each of them shares, computes again or offloads.

    Raises:
        ValueError: the processes cannot be divided into such groups, or both ``sequence`` and ``tensor`` are above 1.
    """

    # processes
    world: int = 1
    sequence: int = 1
    """Processes that share the tokens of the same sequences (Ulysses); ZeRO shards over them too."""
    # processes that share every layer's heads and columns
    tensor: int = 1
    # ZeRO stage; None trains without an engine, on fp32 weights under autocast
    zero: int | None = None
    # sequences of a forward, in each of the `data` groups
    micro_batch: int = 1
    checkpoint_layers: Layers | None = None
    """How blocks are computed again for the backward (:mod:`tape_ds.methods.recompute`); None: they are not."""
    # the inputs of those blocks wait in the host's memory
    offload_checkpoints: bool = False
    offload_optimizer: Offload = "none"
    offload_weights: Offload = "none"
    mlp_tiles: int = 1
    """Pieces of a sequence that feed-forwards work on one at a time, each computed again in the backward."""
    engine: Engine = Engine()

    def __post_init__(self) -> None:
        if min(self.sequence, self.tensor) < 1 or self.world % self.ways:
            raise ValueError(f"{self.world} processes cannot be divided into groups of {self.ways}")
        if self.sequence > 1 and self.tensor > 1:
            raise ValueError("processes share either tokens or heads and columns, not both")

    @property
    def ways(self) -> int:
        """Number of processes that work on the same sequences."""
        return self.sequence * self.tensor

    @property
    def data(self) -> int:
        """Data-parallel size: the number of groups, which read different sequences."""
        return self.world // self.ways

    @property
    def readers(self) -> str:
        """Noun for the :attr:`data` groups."""
        if self.ways == 1:
            return "processes"
        groups = "groups" if self.data > 1 else "group"
        return f"{groups} of {self.ways} processes"

    @property
    def recomputes(self) -> bool:
        return self.checkpoint_layers is not None

    def data_rank(self, rank: int) -> int:
        return rank // self.ways

    def groups(self) -> list[list[int]]:
        """Return the ranks of each group, in order of their tokens and heads."""
        return [list(range(first, first + self.ways)) for first in range(0, self.world, self.ways)]

    def shards(self, stage: int = 0) -> int:
        """Number of shards of what ZeRO ``stage`` partitions; of what every stage does without one."""
        # each piece of a model that is cut has its shards
        if stage == 0 or (self.zero is not None and self.zero >= stage):
            return self.world // self.tensor
        return 1

    def flags(self) -> dict[str, str]:
        """Return the fields of a recipe for this layout, as a command line takes them."""
        offload = "_offload" if {self.offload_optimizer, self.offload_weights} != {"none"} else ""
        return {
            "deepspeed": "null" if self.zero is None else f"zero{self.zero}{offload}",
            "per_device_train_batch_size": str(self.micro_batch),
            TENSOR: str(self.tensor),
            SEQUENCE: str(self.sequence),
            "activation_checkpointing": str(self.recomputes).lower(),
            "checkpoint_layers": str(self.checkpoint_layers or 1),
            "checkpoint_offload": str(self.offload_checkpoints).lower(),
            "mlp_tiles": str(self.mlp_tiles),
        }

    def changes(self, other: "Layout") -> set[str]:
        """Return the fields that differ; both fields of checkpointing are one choice."""
        before = other.flags()
        differing = {name for name, value in self.flags().items() if value != before[name]}
        return {name.replace("checkpoint_layers", "activation_checkpointing") for name in differing}

    def command_line(self, other: "Layout | None" = None) -> str:
        """Return the flags that turn a recipe of the layout ``other`` (None: any recipe) into this one."""
        before = (other or Layout()).flags()
        words = []
        for name, value in self.flags().items():
            # recipes have different values of these two
            is_always = name in ("deepspeed", "per_device_train_batch_size")
            if is_always or value != before[name]:
                words.append(f"--{name} {value}")
        return " ".join(words)


def check_heads(
    heads: int, key_value_heads: int, size: int, field: str = SEQUENCE
) -> Iterator[Problem]:
    """Check that ``size`` processes of one group can share a model's heads.

    Each takes the same number of query heads: whole key/value groups, or a part of one.
    """
    fitting = []
    for ranks in range(1, heads + 1):
        # several key/value heads for each rank, or several ranks for each of them
        fits_groups = key_value_heads % ranks == 0 or ranks % key_value_heads == 0
        if heads % ranks == 0 and fits_groups:
            fitting.append(ranks)
    if size not in fitting:
        wrong = f"{size} processes cannot share the model's {heads} query heads on {key_value_heads} key/value heads"
        yield Problem(field, size, wrong, f"give one of: {', '.join(map(str, fitting))}")


def check_cuts(config: Any, size: int) -> Iterator[Problem]:
    """Check that a tensor-parallel group of ``size`` processes can share a model's heads, columns and vocabulary.

    Args:
        config: a transformers configuration of a Llama-like model.
        size: of the group.
    """
    if size <= 1:
        return
    yield from check_heads(config.num_attention_heads, config.num_key_value_heads, size, TENSOR)
    for name in ("attention_bias", "mlp_bias"):
        if getattr(config, name, False):
            wrong = (
                f"the model has {name}: every process would add a bias that follows a sum of parts"
            )
            yield Problem(TENSOR, size, wrong, f"use {SEQUENCE}")
    if size > min(config.intermediate_size, config.vocab_size):
        yield Problem(
            TENSOR, size, "more than the model's columns or vocabulary entries", "give less"
        )
