"""The layout of a run: what is sharded over which GPUs, recomputed, or kept in the host's memory."""

from dataclasses import dataclass
from typing import Literal

Offload = Literal["none", "cpu", "nvme"]
Layers = Literal[1, "selective"]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """DeepSpeed's own buffers; sizes in elements. Defaults are those of ``ds_configs/zero1`` and
    ``zero2``, and DeepSpeed's own."""

    reduce_bucket: int = 200_000_000
    overlap: bool = True
    """Communication overlaps computation: ZeRO-1 and 2 then have two buckets."""
    prefetch_bucket: int = 50_000_000
    max_live: int = 1_000_000_000
    """ZeRO-3: gathered weights that may be there at once."""
    persistence: int = 100_000
    """ZeRO-3: smaller parameters are never given back."""
    sub_group: int = 1_000_000_000
    """ZeRO-3: weights that the optimizer steps on at once."""
    secondary: int = 1
    """ZeRO++ (hpZ): ranks that share a second copy of the weights; 1: none."""

    @classmethod
    def zero_3(cls, hidden: int) -> "Engine":
        """Return the sizes that transformers fills in for "auto", as in ``ds_configs/zero3``."""
        square = hidden * hidden
        return cls(reduce_bucket=square, prefetch_bucket=int(0.9 * square), persistence=10 * hidden)


@dataclass(frozen=True, kw_only=True)
class PlannedLayout:
    """The choices that decide memory and time, for the same numbers at the end."""

    gpus: int = 1
    zero: int | None = 3
    """ZeRO stage; None trains without an engine, on fp32 weights under autocast."""
    tensor: int = 1
    """GPUs that share each layer's heads and columns."""
    sequence: int = 1
    """GPUs that share each sequence's tokens (Ulysses); ZeRO shards over them too."""
    micro_batch: int = 1
    """Sequences of a forward, on each data-parallel rank."""
    checkpoint_layers: Layers | None = None
    """How blocks are computed again for the backward (:mod:`tape_ds.methods.recompute`); None: they are not."""
    offload_checkpoints: bool = False
    """The inputs of those blocks wait in the host's memory."""
    offload_optimizer: Offload = "none"
    offload_weights: Offload = "none"
    mlp_tiles: int = 1
    """Pieces of a sequence that feed-forwards work on one at a time, each computed again in the backward."""
    engine: Engine = Engine()

    @property
    def recomputes(self) -> bool:
        return self.checkpoint_layers is not None

    @property
    def replicas(self) -> int:
        """Ranks, or groups of them, that read different sequences."""
        return self.gpus // (self.tensor * self.sequence)

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO shards weights, gradients and optimizer states."""
        return self.gpus // self.tensor

    def shared(self, stage: int) -> int:
        """Number of shards of what ZeRO ``stage`` partitions."""
        return self.shards if self.zero is not None and self.zero >= stage else 1

    def flags(self) -> dict[str, str]:
        """Return the fields of a recipe for this layout, as a command line takes them."""
        offload = "_offload" if {self.offload_optimizer, self.offload_weights} != {"none"} else ""
        return {
            "deepspeed": "null" if self.zero is None else f"zero{self.zero}{offload}",
            "per_device_train_batch_size": str(self.micro_batch),
            "tensor_parallel_size": str(self.tensor),
            "sequence_parallel_size": str(self.sequence),
            "activation_checkpointing": str(self.recomputes).lower(),
            "checkpoint_layers": str(self.checkpoint_layers or 1),
            "checkpoint_offload": str(self.offload_checkpoints).lower(),
            "mlp_tiles": str(self.mlp_tiles),
        }

    def differing(self, other: "PlannedLayout") -> list[str]:
        before = other.flags()
        return [name for name, value in self.flags().items() if value != before[name]]

    def changes(self, other: "PlannedLayout") -> int:
        """Return how many choices differ; the two flags of checkpointing are one choice."""
        return len({name.replace("checkpoint_layers", "activation_checkpointing") for name in self.differing(other)})

    def command_line(self, other: "PlannedLayout | None" = None) -> str:
        """Return the flags that turn a recipe of the layout ``other`` (None: any recipe) into this one."""
        named = {"deepspeed", "per_device_train_batch_size", *self.differing(other or PlannedLayout())}
        return " ".join(f"--{name} {value}" for name, value in self.flags().items() if name in named)
