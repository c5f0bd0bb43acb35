"""This process's rank and machine, from the launcher's environment variables: known before any process group exists."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessInfo:
    """One process of a job; None: not set by its launcher."""

    rank: int
    # number of ranks in the job
    world: int
    local_rank: int
    # number of ranks on its machine
    on_node: int | None
    # index of its machine (`--node_rank`)
    node: int | None
    # number of machines
    nodes: int | None
    # hostname
    host: str

    @property
    def is_single_node(self) -> bool:
        """Whether all ranks run on this machine, where one launcher ends them together."""
        return self.world == 1 or self.on_node == self.world

    @property
    def leads_node(self) -> bool:
        """Whether it reports for its machine."""
        return self.local_rank == 0

    @property
    def machine(self) -> str:
        if self.node is None:
            return self.host
        return f"node_rank {self.node} ({self.host})"


def current(environ: Mapping[str, str] | None = None) -> ProcessInfo:
    """Read the launcher's variables; a single process without a launcher is rank 0 of 1."""
    variables = os.environ if environ is None else environ

    def number(*names: str) -> int | None:
        for name in names:
            if variables.get(name, "").isdigit():
                return int(variables[name])
        return None

    # names set by DeepSpeed's launch.py, then torchrun's, then srun's
    return ProcessInfo(
        rank=number("RANK") or 0,
        world=number("WORLD_SIZE") or 1,
        local_rank=number("LOCAL_RANK") or 0,
        on_node=number("LOCAL_SIZE", "LOCAL_WORLD_SIZE"),
        node=number("CROSS_RANK", "GROUP_RANK", "SLURM_NODEID"),
        nodes=number("CROSS_SIZE", "GROUP_WORLD_SIZE"),
        host=socket.gethostname(),
    )
