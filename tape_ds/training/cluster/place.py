"""Where in a job this process stands, as its launcher's variables say: before any process group exists."""

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

_NODE = ("CROSS_RANK", "GROUP_RANK", "SLURM_NODEID")
"""Variables with the number of the machine: DeepSpeed's launch.py, torchrun, srun."""
_ON_NODE = ("LOCAL_SIZE", "LOCAL_WORLD_SIZE")
"""Those with the number of ranks on it: DeepSpeed's launch.py, torchrun."""
_NODES = ("CROSS_SIZE", "GROUP_WORLD_SIZE")
"""Those with the number of machines: DeepSpeed's launch.py, torchrun."""


@dataclass(frozen=True)
class Place:
    """One process of a job."""

    rank: int
    world: int
    """Ranks of the job."""
    local_rank: int
    """Number among the ranks of its machine."""
    on_node: int | None
    """Ranks of its machine; None: the launcher does not say."""
    node: int | None
    """Number of its machine (``--node_rank``); None: the launcher does not say."""
    host: str
    """The machine's name for itself."""
    nodes: int | None = None
    """Machines of the job; None: the launcher does not say."""

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

    def node_of(self, rank: int) -> int | None:
        """Number of the machine that another rank is on; None where machines do not all have as many ranks as this one,
        or the launcher does not say."""
        if self.on_node is None or self.nodes is None or self.on_node * self.nodes != self.world:
            return None
        return rank // self.on_node


def here(environ: Mapping[str, str] | None = None) -> Place:
    """This process's place; that of a job of one where no launcher started it."""
    given = os.environ if environ is None else environ

    def number(names: Iterable[str]) -> int | None:
        return next((int(given[name]) for name in names if given.get(name, "").isdigit()), None)

    return Place(
        rank=number(["RANK"]) or 0,
        world=number(["WORLD_SIZE"]) or 1,
        local_rank=number(["LOCAL_RANK"]) or 0,
        on_node=number(_ON_NODE),
        node=number(_NODE),
        host=socket.gethostname(),
        nodes=number(_NODES),
    )


def ranges(numbers: Iterable[int]) -> str:
    """``[0, 1, 2, 5]`` -> ``0-2, 5``."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in run] for _, run in runs]
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
