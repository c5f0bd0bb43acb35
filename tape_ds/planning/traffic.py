"""What GPUs send each other in a step, by kind and link, and how long that takes.

Volumes are those of ring algorithms: a gather or a scatter of S bytes over n ranks sends (n - 1) / n S from each, a sum
that all get twice that. Within a node NVLink carries it; a group over several nodes sends through the network adapters
of all its GPUs of a node at once, and pays a latency for every hop.
"""

from dataclasses import dataclass, replace
from typing import Literal

from tape_ds.planning import activations
from tape_ds.planning.hardware import HOP_SECONDS, LAUNCH_SECONDS, LINK_SHARE, NVME_BANDWIDTH, Gpu
from tape_ds.planning.job import Job
from tape_ds.planning.shape import total

Link = Literal["node", "network", "host"]
When = Literal["beside a micro-step", "within a micro-step", "beside the last backward", "after the step"]


@dataclass(frozen=True)
class Traffic:
    """One kind of communication."""

    kind: str
    link: Link
    when: When
    """"beside": computation goes on meanwhile; "within": it waits."""
    bytes: float
    """That one GPU sends in an optimizer step."""
    messages: int
    seconds: float
    """Of an optimizer step, before anything is hidden behind computation."""


@dataclass(frozen=True)
class Group:
    """Ranks that talk to each other."""

    size: int
    of_a_node: int
    """Of them, in one node."""

    @property
    def link(self) -> Link:
        """The slowest that its messages pass."""
        return "node" if self.size <= self.of_a_node else "network"

    def ring_seconds(self, gpu: Gpu, sent: float, messages: float) -> float:
        """Time of so many messages of a ring, each GPU sending ``sent`` bytes in all."""
        hops = min(self.size, self.of_a_node) - 1
        latency = LAUNCH_SECONDS + hops * HOP_SECONDS["node"]
        bandwidth = gpu.nvlink
        if self.link == "network":
            latency += (self.size / self.of_a_node - 1) * HOP_SECONDS["network"]
            bandwidth = min(bandwidth, gpu.network * self.of_a_node)
        return sent / (bandwidth * LINK_SHARE) + messages * latency

    def exchange_seconds(self, gpu: Gpu, sent: float, messages: float) -> float:
        """Time of an all-to-all: what leaves the node goes through the GPU's own adapter."""
        outside = max(0.0, 1 - self.of_a_node / self.size) * sent
        slow = outside / (gpu.network * LINK_SHARE)
        return max(slow, (sent - outside) / (gpu.nvlink * LINK_SHARE)) + messages * LAUNCH_SECONDS


def groups(job: Job) -> tuple[Group, Group, Group]:
    """Tensor-parallel, sequence-parallel and sharding ranks, neighbours first in this order."""
    assert job.gpu is not None, "a CPU's links are not known"
    layout, node = job.layout, job.gpu.per_node
    tensor = Group(layout.tensor, min(layout.tensor, node))
    sequence = Group(layout.sequence, max(1, min(layout.sequence, node // layout.tensor)))
    shards = Group(layout.shards, max(1, min(layout.shards, node // layout.tensor)))
    return tensor, sequence, shards


def of(job: Job) -> list[Traffic]:
    """Everything that is sent."""
    tensor, sequence, shards = groups(job)
    found = [*_sharding(job, shards), *_tensor(job, tensor), *_sequence(job, sequence), *_host(job)]
    return [each for each in found if each.bytes]


def _ring(job: Job, group: Group, kind: str, when: When, whole: float, messages: float, sums: bool = False) -> Traffic:
    """A ring's message of ``whole`` bytes over all ranks, in all of a step."""
    assert job.gpu is not None
    sent = whole * (group.size - 1) / group.size * (2 if sums else 1)
    seconds = group.ring_seconds(job.gpu, sent, messages * (2 if sums else 1)) if group.size > 1 else 0.0
    return Traffic(kind, group.link, when, sent, round(messages), seconds)


def _sharding(job: Job, group: Group) -> list[Traffic]:
    """ZeRO's, or plain data parallelism's."""
    layout, engine, element, times = job.layout, job.layout.engine, job.element, job.accumulation
    trained = total(job.own, trained=True)
    per_layer = job.model.layers
    if layout.zero == 3:
        big = sum(each.total for each in job.own if each.size >= engine.persistence)
        passes = 2 if job.trained.anything else 1
        gathers = max(per_layer, big / max(1, engine.prefetch_bucket))
        scatters = max(1.0, trained / max(1, engine.reduce_bucket))
        within = passes // 2 if engine.secondary > 1 else 0
        near = replace(group, size=engine.secondary)
        gathered = 1 if engine.quantised_weights else element
        sent_back = 0.5 if engine.quantised_gradients else element
        return [
            _ring(
                *(job, group, "weights gathered", "beside a micro-step"),
                *(big * gathered * (passes - within) * times, (passes - within) * times * gathers),
            ),
            _ring(
                *(job, near, "weights gathered from the second copy", "beside a micro-step"),
                *(big * gathered * within * times, within * times * gathers),
            ),
            _ring(
                *(job, group, "gradients reduced", "beside a micro-step"),
                *(trained * sent_back * times, times * scatters),
            ),
        ]
    reductions = max(1.0, trained / max(1, engine.reduce_bucket))
    if layout.zero == 2:
        reduced = _ring(
            *(job, group, "gradients reduced", "beside a micro-step"),
            *(trained * element * times, times * reductions),
            sums=True,
        )
    else:
        size = element if layout.zero is not None else 4
        reduced = _ring(
            *(job, group, "gradients reduced", "beside the last backward"), *(trained * size, reductions), sums=True
        )
    if not layout.zero:
        return [reduced]
    gathers = max(1.0, trained / max(1, engine.reduce_bucket))
    return [reduced, _ring(job, group, "new weights gathered", "after the step", trained * element, gathers)]


def _passes(job: Job) -> float:
    """How often the blocks' communication happens: forward, backward, and forward again."""
    again = 0.0 if job.layout.every is None else 1 / job.layout.every
    return (2 if job.trained.anything else 1) + again


def _tensor(job: Job, group: Group) -> list[Traffic]:
    """Around attention and around the feed-forward of every block, hidden states are gathered from the ranks that keep
    their tokens and added up where these are kept (Korthikanti et al. 2022, arXiv:2205.05198, Section 4.2.2), once more
    behind the embedding and in front of the head; position states change from tokens to heads and back; and gradients
    are added up, as they come, of what every rank has whole and uses for its own tokens."""
    model, times, element = job.model, job.accumulation, job.element
    layers = model.layers * _passes(job) * times
    rings = 4 * layers + 2 * (1 + job.trained.anything) * times
    hidden = job.tokens * model.hidden * element
    whole = [each for each in job.own if each.trained and not each.split]
    return [
        _ring(job, group, "hidden states gathered, added up", "within a micro-step", rings * hidden, rings),
        _states(job, group),
        _ring(
            *(job, group, "gradients of whole weights", "within a micro-step", total(whole) * element * times),
            *(sum(each.count for each in whole) * times, True),
        ),
    ]


def _states(job: Job, group: Group) -> Traffic:
    """The state of a rank's heads comes for the rotation, and what attention made of it goes back: all-to-all. The
    first block has no state yet, and the last makes nothing of it."""
    assert job.gpu is not None
    model = job.model
    blocks = (model.layers - 1) * _passes(job) * job.accumulation
    state = activations.state_bytes(job, of_own_heads=True)
    moved = model.heads * model.carried / group.size * job.element
    sent = job.tokens * (state + moved) * blocks * (group.size - 1) / group.size
    messages = blocks * (bool(state) + bool(moved))
    seconds = group.exchange_seconds(job.gpu, sent, messages) if sent else 0.0
    return Traffic("position states exchanged", group.link, "within a micro-step", sent, round(messages), seconds)


def _sequence(job: Job, group: Group) -> list[Traffic]:
    """Queries, keys and the wide value in, the wide output back: all-to-all."""
    assert job.gpu is not None
    model, ways = job.model, job.layout.tensor
    layers = model.layers * _passes(job) * job.accumulation
    wide = 1 + model.carried / model.head_size
    key = max(model.groups / ways, group.size) * model.head_size if group.size > 1 else model.key / ways
    columns = model.query / ways * (1 + wide) + key * (1 + wide)
    sent = job.tokens * columns * job.element * layers * (group.size - 1) / group.size
    seconds = group.exchange_seconds(job.gpu, sent, 4 * layers) if group.size > 1 else 0.0
    return [Traffic("heads for tokens", group.link, "within a micro-step", sent, round(4 * layers), seconds)]


def _host(job: Job) -> list[Traffic]:
    """What is offloaded, down and up again; an optimizer's states on a disk are part of its own time."""
    assert job.gpu is not None
    layout, element, times = job.layout, job.element, job.accumulation
    found = []
    moved = 2 * activations.of(job).offloaded * times if layout.offload_checkpoints else 0.0
    found.append(("checkpoints to the host and back", "beside a micro-step", moved))
    if layout.offload_weights != "none":
        share = total(job.own) * element / layout.shards
        found.append(("weights from the host", "beside a micro-step", 2 * share * times))
    if layout.offload_optimizer != "none":
        share = total(job.own, trained=True) * element / layout.shards
        found.append(("gradients to the host, weights back", "after the step", 2 * share))
    speed = job.gpu.host_link * LINK_SHARE
    slow = NVME_BANDWIDTH if layout.offload_weights == "nvme" else speed
    seconds = {kind: size / (slow if kind == "weights from the host" else speed) for kind, _, size in found}
    return [Traffic(kind, "host", when, size, 0, seconds[kind]) for kind, when, size in found]  # type: ignore[arg-type]
