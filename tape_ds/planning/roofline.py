"""Time of a step: computation, what is bound by memory, and the traffic that is not hidden by it.

Volumes of traffic are those of ring algorithms: a gather or a scatter of S bytes over n ranks sends (n - 1) / n S from
each, an all-reduce twice that. Only bandwidth is counted, no latency.
"""

import math
from dataclasses import dataclass
from typing import Literal

from tape_ds.planning import activations
from tape_ds.planning.hardware import HOST_BANDWIDTH, LINK_SHARE, MEMORY_SHARE, NVME_BANDWIDTH, Gpu
from tape_ds.planning.job import Job
from tape_ds.planning.shape import total

FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
"""Linear layers of a feed-forward."""
HIDDEN_SHARE = 0.9
"""Share of computation that can overlap communication, and of a message that can be hidden at most."""
WIDE_KERNEL_SHARE = 0.75
"""Rate of the fused kernel for a wide value over the vendor kernel's; steps of one H200 came within 7 % by it."""
STEP_BYTES = 30
"""AdamW, fused, per trained parameter: master and two moments read and written, the gradient read, 16 bits written."""


@dataclass(frozen=True)
class Work:
    """FLOP per token, two for each multiply-add; causal attention by the half that is computed."""

    linear: float
    """Matrix products: blocks', the encoding's, the output head's; recomputation included."""
    attention: float
    model: float
    """Work that counts for MFU, see :func:`tape_ds.models.flops.training_flops_per_token`: without recomputation,
    and a packed sequence taken for one document."""


def work(job: Job) -> Work:
    model = job.model
    layout = job.layout
    trained = job.trained
    trains = trained.anything
    again = layout.recomputes
    blocks = {name: 2.0 * model.layers * a * b for name, (a, b) in model.linears.items()}
    fixed, per_key = model.position_work
    linear = sum(blocks.values()) + 2 * fixed
    head = 2.0 * model.hidden * model.vocabulary
    own_weights = linear * trained.linears + 2 * sum(
        each.total for each in job.tensors if each.trained and each.kind in ("adapter", "position")
    )
    products = linear * (1 + trains + again) + own_weights * trains
    if layout.mlp_tiles > 1 and trains:
        products += sum(blocks[name] for name in FEED_FORWARD if name in blocks)
    products += head * (1 + trains * (1 + job.trains_head))
    # a forward of the blocks; the head reads a stretch of each
    if job.read_again and job.short is not None:
        targets = job.read_again * job.short[1] / sum(job.short)
        products += linear * job.read_again + head * targets

    block = model.query * job.attended
    seen = per_key * job.attended
    # each half of a wide value has its own scores
    calls = model.layers + (job.attention_calls - 1) * model.placed
    # a GPU's kernels take one width for queries, keys and values
    products_of_heads = (calls + model.placed * model.added / model.head_size) * block
    extra = seen if job.attention_calls == 1 and not model.added else 0.0
    # scores, values; scores, dP, dV, dK, dQ
    forward = 2 * products_of_heads + extra
    backward = 5 * products_of_heads + 2 * extra
    if job.read_again and job.short is not None:
        seen_again = min(job.attended, sum(job.short)) / job.attended
        forward_again = forward * seen_again * job.read_again
    else:
        forward_again = 0.0
    whole = (job.length if job.attention_span is None else job.attention_span) / job.attended
    plain = linear + head + (2 * model.layers * block + seen) * whole
    return Work(
        linear=products,
        attention=forward * (1 + (layout.checkpoint_layers == 1))
        + forward_again
        + backward * trains,
        model=plain * (2 + job.trained_parameters / job.parameters if trains else 1),
    )


@dataclass(frozen=True)
class Traffic:
    """One kind of communication in an optimizer step."""

    kind: str
    link: Literal["node", "network", "host"]
    bytes: float
    """That one GPU sends."""
    seconds: float
    """Before any of it is hidden by computation."""
    overlap: float
    """Share of the step's computation that can hide it; 0: computation waits."""


@dataclass(frozen=True)
class _Group:
    """Ranks that talk to each other, ``stride`` apart."""

    gpu: Gpu
    size: int
    stride: int = 1

    def sends(
        self, kind: str, whole: float, overlap: float = 0.0, *, exchange: bool = False
    ) -> Traffic:
        """Return a message of ``whole`` bytes over all ranks. A ring over several nodes sends through the network
        adapters of all its GPUs of a node at once, an all-to-all ``exchange`` through each GPU's own."""
        of_a_node = max(1, min(self.size, self.gpu.per_node // self.stride))
        sent = whole * (self.size - 1) / self.size
        if self.size <= of_a_node:
            return Traffic(kind, "node", sent, sent / (self.gpu.link * LINK_SHARE), overlap)
        speed = min(self.gpu.link, self.gpu.network * (1 if exchange else of_a_node))
        return Traffic(kind, "network", sent, sent / (speed * LINK_SHARE), overlap)


def traffic(job: Job, gpu: Gpu) -> list[Traffic]:
    layout = job.layout
    model = job.model
    times = job.accumulation
    element = job.element
    trained = total(job.own, trained=True)
    trains = job.trained.anything
    replicas = _Group(gpu, layout.shards(), layout.tensor)
    shared = _Group(gpu, layout.sequence, layout.tensor)
    pieces = _Group(gpu, layout.tensor)
    found = []

    # ZeRO. The gradients of stages 0 and 1 go in the last backward alone, which is two thirds of a micro-step.
    size = 2 * trained * (element if layout.zero is not None else 4)
    if layout.zero == 3:
        big = sum(each.total for each in job.own if each.size >= layout.engine.persistence)
        # short contexts are read a micro-batch's tokens at a time, those of a group by its ranks together
        reads = 1 + trains + math.ceil(job.read_again / layout.sequence)
        found.append(replicas.sends("weights gathered", big * element * reads * times, overlap=1))
        found.append(replicas.sends("gradients reduced", trained * element * times, overlap=1))
    elif layout.zero == 2:
        found.append(replicas.sends("gradients reduced", size * times, overlap=1))
    else:
        found.append(replicas.sends("gradients reduced", size, overlap=2 / 3 / times))
    if layout.zero in (1, 2):
        found.append(replicas.sends("new weights gathered", trained * element))

    # Tensor parallelism: around attention and the feed-forward of every block, hidden states are gathered from the
    # ranks that keep their tokens and reduced to them (Korthikanti et al. 2022, arXiv:2205.05198, Section 4.2.2), once
    # more after the embedding and before the head; position states change from tokens to heads and back (the first
    # block has none yet, and the last makes nothing of it). Gradients of replicated parameters are too few to count.
    passes = (1 + trains + layout.recomputes) * times
    read = (1 + trains + layout.recomputes + job.read_again) * times
    rings = 4 * model.layers * read + 2 * (1 + trains + job.read_again) * times
    state = (model.layers - 1) * activations.state_bytes(job, of_own_heads=True)
    state += (model.placed - 1) * model.heads * model.carried / layout.tensor * element
    found.append(
        pieces.sends(
            "hidden states gathered, added up", rings * job.tokens * model.hidden * element
        )
    )
    found.append(
        pieces.sends("position states exchanged", read * job.tokens * state, exchange=True)
    )

    # Ulysses: rotated queries and keys and the wide value in, the wide output out
    wide = 2 * model.layers + model.placed * (model.added + model.carried) / model.head_size
    columns = (model.query + max(model.groups, layout.sequence) * model.head_size) * wide
    found.append(
        shared.sends("heads for tokens", job.tokens * columns * element * passes, exchange=True)
    )

    # offload, down and up again; optimizer states on a disk are part of the optimizer's time
    link = gpu.host_link * LINK_SHARE
    weights = total(job.own) / layout.shards() * (layout.offload_weights != "none")
    stepped = trained / layout.shards() * (layout.offload_optimizer != "none")
    slow = NVME_BANDWIDTH if layout.offload_weights == "nvme" else link
    for kind, moved, speed, overlap in (
        ("checkpoints to the host and back", activations.count(job).offloaded * times, link, 1),
        ("weights from the host", weights * element * times, slow, 1),
        ("gradients to the host, weights back", stepped * element, link, 0),
    ):
        found.append(Traffic(kind, "host", 2 * moved, 2 * moved / speed, overlap))
    return [each for each in found if each.bytes]


def memory_bound(job: Job) -> float:
    """Return bytes per token that a rank's operators read and write besides matrix products and attention. In passes
    over a sequence's columns, each read or written once: two norms and two residuals (10 passes over hidden states with
    fused norms, 38 with torch's fp32 ones), the rotation of queries and keys (2), the gated product (3 over the inner
    columns, 5 unfused). The backward makes twice as many, recomputation as many again. The position update makes 5
    passes over the state forward and 9 backward, and 2 to form ``e`` for the value. Value and state are not joined;
    where each has its own call, the gradients of queries and keys are summed (3 passes)."""
    model = job.model
    again = job.layout.recomputes
    trains = job.trained.anything
    hidden = 10 if job.fused or job.fused_norms else 38
    inner = 3 if job.fused else 5
    columns = hidden * model.hidden + 2 * (model.query + model.key) + inner * model.inner
    added = model.placed * model.added / model.head_size * (model.query + model.key)
    passes = (model.layers * columns + added) * (1 + 2 * trains + again + job.read_again)
    passes += model.placed * model.state * (7 * (1 + again + job.read_again) + 9 * trains)
    passes += model.placed * (job.attention_calls - 1) * 3 * (model.query + model.key) * trains
    return passes / job.layout.tensor * job.element


@dataclass(frozen=True)
class Step:
    """Seconds of an optimizer step, by purpose."""

    linear: float
    attention: float
    memory_bound: float
    """Norms, activations, rotations, position updates, residuals: operators that read and write once."""
    optimizer: float
    waiting: float
    """Communication that is not hidden."""
    hidden: float
    """Communication that is; not part of the step."""
    all: float
    """The whole step."""
    tokens_per_second: float
    """All GPUs together."""
    mfu: float
    """Model FLOP/s over the GPUs' peak."""


def step(job: Job, gpu: Gpu) -> Step:
    found = work(job)
    tokens = job.accumulation * job.tokens
    rate = gpu.rates.attention if job.documents is None or job.wide_attention else gpu.rates.packed
    share = WIDE_KERNEL_SHARE if job.wide_attention and job.model.carried else 1.0
    linear = tokens * found.linear / job.layout.tensor / (gpu.peak * gpu.rates.linear)
    attention = tokens * found.attention / job.layout.tensor / (gpu.peak * rate * share)
    bound = tokens * memory_bound(job) / (gpu.bandwidth * MEMORY_SHARE)
    places = {"none": gpu.bandwidth * MEMORY_SHARE, "cpu": HOST_BANDWIDTH, "nvme": NVME_BANDWIDTH}
    trained = total(job.own, trained=True) / job.layout.shards(1)
    optimizer = trained * STEP_BYTES / places[job.layout.offload_optimizer]
    sent = traffic(job, gpu)
    hidden = 0.0
    for overlap in {each.overlap for each in sent}:
        seconds = sum(each.seconds for each in sent if each.overlap == overlap)
        hidden += HIDDEN_SHARE * min(seconds, overlap * (linear + attention + bound))
    waiting = sum(each.seconds for each in sent) - hidden
    every = linear + attention + bound + optimizer + waiting
    speed = job.global_batch * job.length / every
    mfu = speed * found.model / (gpu.peak * job.layout.world)
    return Step(linear, attention, bound, optimizer, waiting, hidden, every, speed, mfu)
