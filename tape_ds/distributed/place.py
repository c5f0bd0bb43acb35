"""Where in a job this process stands, as its launcher's variables say: before any process group exists."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One process of a job. What the launcher does not say is None."""

    rank: int
    world: int
    """Ranks of the job."""
    local_rank: int
    """Number among the ranks of its machine."""
    on_node: int | None
    """Ranks of its machine."""
    node: int | None
    """Number of its machine (``--node_rank``)."""
    nodes: int | None
    """Machines of the job."""
    host: str
    """The machine's name for itself."""

    @property
    def is_alone(self) -> bool:
        """Whether all ranks of the job are on this machine, whose launcher then ends them together."""
        return self.world == 1 or self.on_node == self.world

    @property
    def leads(self) -> bool:
        """Whether it speaks for its machine."""
        return self.local_rank == 0

    @property
    def machine(self) -> str:
        """Its machine in words."""
        return self.host if self.node is None else f"node_rank {self.node} ({self.host})"

    def machine_of(self, rank: int) -> str:
        """Return the machine of another rank in words, where all machines have as many ranks as this one."""
        if self.on_node is None or self.nodes is None or self.on_node * self.nodes != self.world:
            return "an unknown machine"
        return f"node_rank {rank // self.on_node}"


def here(environ: Mapping[str, str] | None = None) -> Place:
    """This process's place; that of a job of one where no launcher started it."""
    given = os.environ if environ is None else environ

    def number(*names: str) -> int | None:
        return next((int(given[name]) for name in names if given.get(name, "").isdigit()), None)

    # names of DeepSpeed's launch.py, then torchrun's, then srun's
    return Place(
        rank=number("RANK") or 0,
        world=number("WORLD_SIZE") or 1,
        local_rank=number("LOCAL_RANK") or 0,
        on_node=number("LOCAL_SIZE", "LOCAL_WORLD_SIZE"),
        node=number("CROSS_RANK", "GROUP_RANK", "SLURM_NODEID"),
        nodes=number("CROSS_SIZE", "GROUP_WORLD_SIZE"),
        host=socket.gethostname(),
    )
