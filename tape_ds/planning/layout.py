"""How a run is spread: what is sharded over how many GPUs, what is computed again, what waits in the host's memory."""

from dataclasses import dataclass
from typing import Literal

Offload = Literal["none", "cpu", "nvme"]
Layers = int | Literal["selective", "selective_matmuls"]
POLICIES: tuple[Layers | None, ...] = (None, 1, "selective", "selective_matmuls")
"""What a search tries."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What DeepSpeed keeps beside the model; sizes in elements, as its JSON has them."""

    reduce_bucket: int = 200_000_000
    overlap: bool = True
    """Communication beside computation: ZeRO-1 and 2 then have two buckets."""
    prefetch_bucket: int = 50_000_000
    max_live: int = 1_000_000_000
    """ZeRO-3: gathered weights that may be there at once."""
    persistence: int = 100_000
    """ZeRO-3: smaller parameters are never given back."""
    sub_group: int = 1_000_000_000
    """ZeRO-3: weights that the optimizer steps on at once."""
    secondary: int = 1
    """ZeRO++ (hpZ): so many ranks share a second copy of the weights, which the backward gathers; 1: there is none."""
    quantised_weights: bool = False
    """ZeRO++ (qwZ): weights are gathered in 8 bits."""
    quantised_gradients: bool = False
    """ZeRO++ (qgZ): gradients are reduced in 4 bits."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The choices that decide memory and time, for the same numbers at the end."""

    gpus: int = 1
    zero: int | None = 3
    """ZeRO stage; None trains without an engine, on fp32 weights under autocast."""
    tensor: int = 1
    """GPUs that share each layer's heads and columns."""
    sequence: int = 1
    """GPUs that share each row's tokens (Ulysses); ZeRO shards over them too."""
    micro_batch: int = 1
    """Rows of a forward, on each data-parallel rank."""
    checkpoint_layers: Layers | None = None
    """Which blocks are computed again for the backward, as ``tape_ds.model.recompute`` takes it: every so many-th, or
    all but for what attention (``selective``) and the linear maps (``selective_matmuls``) gave; None: none."""
    offload_checkpoints: bool = False
    """The inputs of those blocks wait in the host's memory."""
    offload_optimizer: Offload = "none"
    offload_weights: Offload = "none"
    mlp_tiles: int = 1
    """Pieces of a row that feed-forwards work on one at a time, each computed again in the backward."""
    engine: Engine = Engine()

    @property
    def every(self) -> int | None:
        """Every so many-th block is computed again; None: none."""
        return 1 if isinstance(self.checkpoint_layers, str) else self.checkpoint_layers

    @property
    def replicas(self) -> int:
        """Ranks that read rows of their own."""
        return self.gpus // (self.tensor * self.sequence)

    @property
    def shards(self) -> int:
        """Ranks that share weights, gradients and optimizer states out between them."""
        return self.gpus // self.tensor

    def shared(self, stage: int) -> int:
        """By how much that is divided which ZeRO shards from ``stage`` on."""
        return self.shards if self.zero is not None and self.zero >= stage else 1

    def name(self) -> str:
        """In a few words."""
        parts = ["no engine" if self.zero is None else f"ZeRO-{self.zero}"]
        parts += [f"tensor {self.tensor}"] * (self.tensor > 1) + [f"sequence {self.sequence}"] * (self.sequence > 1)
        parts.append(policy_name(self.checkpoint_layers))
        parts += ["checkpoints offloaded"] * self.offload_checkpoints
        parts += _offloaded("optimizer", self.offload_optimizer) + _offloaded("weights", self.offload_weights)
        parts += [f"feed-forward in {self.mlp_tiles} tiles"] * (self.mlp_tiles > 1)
        return ", ".join([*parts, f"micro-batch {self.micro_batch}"])


def _offloaded(what: str, where: Offload) -> list[str]:
    return {"none": [], "cpu": [f"{what} offloaded"], "nvme": [f"{what} offloaded to NVMe"]}[where]


def policy_name(layers: Layers | None) -> str:
    """Which blocks are computed again, in a few words."""
    if layers is None:
        return "no checkpointing"
    if isinstance(layers, str):
        return f"checkpointing {layers}"
    return "checkpointing" if layers == 1 else f"checkpointing 1 of {layers} layers"
