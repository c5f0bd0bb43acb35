"""Memory of activations, tensor by tensor: kept by a forward for its backward, and needed during the backward.

The counts follow ``tape_ds/models/llama.py`` and the operators it calls: an operator's saved tensors depend on what is
trained, and a tensor that two of them save is there once. With tensor parallelism a rank has its share of heads and
inner columns where linear maps read the gathered tokens of all, and elsewhere its share of tokens (norms, residuals,
position states and their updates); with sequence parallelism it has its share of tokens everywhere but in attention.
Exchanged tensors that a backward reads on both sides are there twice.

Letters: D hidden size, Q columns of all queries, E of all keys, I inner columns of the feed-forward, C of the position
state, R of its feed-forward.
"""

from dataclasses import dataclass

from tape_ds.kernels.linear_cross_entropy import chunk_tokens
from tape_ds.planning.job import Job


@dataclass(frozen=True)
class SavedTensor:
    """One kept tensor, per token."""

    name: str
    bytes: float
    selected: bool = False
    """Whether selective checkpointing keeps it as well: an output of attention."""
    carried: bool = False
    """Whether the last block lacks it: it carries no state, since no layer reads an update of it."""
    placed: bool = False
    """Whether blocks without positions lack it; they carry no state either."""


def inside(job: Job) -> list[SavedTensor]:
    """Return the tensors that one block keeps without checkpointing, except its input and its position state."""
    model = job.model
    trained = job.trained
    element = job.element
    ways = job.layout.tensor
    query = model.query / ways * element * model.attending
    inner = model.inner / ways * element
    # with fewer key/value heads than ranks, each has one
    key = max(model.groups / ways, 1) * model.head_size * element * model.attending
    hidden = model.hidden * element
    wide = model.carried / model.head_size
    sums = model.heads / ways * 4 * model.attending
    tiled = job.layout.mlp_tiles > 1
    positions = bool(model.state)
    exchanged = max(ways, job.layout.sequence) > 1
    turned = 1 + model.added / model.head_size
    # a GPU's kernels take one width for queries, keys and values
    padded = 1.0 if job.gpu is None else turned
    found = [
        *_norm(job, "input norm"),
        SavedTensor(
            "input of q, k, v", _reads(job, "q_proj", "k_proj", "v_proj") * hidden * model.attending
        ),
        SavedTensor("q and k as rotated", query + key),
        SavedTensor("columns added to q and k", (query + key) * (turned - 1), placed=True),
        *(_norm(job, "norms of q and k", (query + key) / element) if model.normed_heads else ()),
        SavedTensor("q and k before", model.keeps_unrotated * (query + key), placed=True),
        SavedTensor("value", key * padded),
        SavedTensor("state beside the value", key * wide, carried=True),
        SavedTensor("attention's output", query * padded, selected=True),
        SavedTensor("what became of the state", query * wide, selected=True, carried=True),
        SavedTensor(
            "what became of it, of own tokens",
            (exchanged and trained.positions) * query * wide,
            carried=True,
        ),
        SavedTensor("attention's sums", sums, selected=True),
        SavedTensor(
            "input of o",
            (_reads(job, "o_proj") and (wide or padded > 1 or job.layout.sequence > 1)) * query,
        ),
        SavedTensor("recurrence", model.recurrent[element == 4]),
        *_norm(job, "norm after attention"),
        SavedTensor(
            "input of gate and up", (tiled or _reads(job, "gate_proj", "up_proj")) * hidden
        ),
        SavedTensor("gate of the state", positions * model.rank / ways * element, carried=True),
        # position updates read it
        SavedTensor(
            "feed-forward's output", (positions and trained.positions) * hidden / ways, carried=True
        ),
        SavedTensor(
            "state of own heads", (ways > 1) * state_bytes(job, of_own_heads=True), carried=True
        ),
        *(
            SavedTensor(f"inside the adapter of {name}", rank * element)
            for name, rank in trained.adapters
        ),
    ]
    # in the kernel on a GPU; on a CPU a mask, half a sequence's held
    if model.biased and job.gpu is None:
        found.append(
            SavedTensor("bias", model.heads / ways * job.length / 2 * 4, selected=True, placed=True)
        )
    if not tiled:
        found += [
            SavedTensor("gate, up", 2 * inner),
            SavedTensor("activation of the gate", (not job.fused) * inner),
            SavedTensor("input of down", _reads(job, "down_proj") * inner),
        ]
    # one call for each half, whose outputs stay apart
    if wide and job.gpu is not None and not job.wide_attention:
        found.append(SavedTensor("sums of the second half", sums, selected=True, carried=True))
    return [each for each in found if each.bytes]


def state_bytes(job: Job, *, of_own_heads: bool = False) -> float:
    """Return bytes per token of a rank's part of the position state: of its tokens, or (tensor parallelism) of its
    heads, with which it rotates the tokens of all."""
    model = job.model
    ways = job.layout.tensor
    share = max(1 / ways, 1 / model.groups) if of_own_heads else 1 / ways
    return model.state * share * (job.state_element or job.element)


def _reads(job: Job, *names: str) -> bool:
    """Return whether the input of these linear maps is kept: where a weight, or its adapter, is trained; and always
    under ZeRO-3, whose own linear map keeps it."""
    return (
        job.layout.zero == 3
        or job.trained.linears
        or any(name in names for name, _ in job.trained.adapters)
    )


def _norm(job: Job, name: str, columns: float | None = None) -> list[SavedTensor]:
    """Return the tensors of an RMSNorm over ``columns`` (None: of the hidden states): its input (by torch in fp32,
    unless a fused kernel reads it as it is), and the factor of its weight."""
    hidden = job.model.hidden / job.layout.tensor if columns is None else columns
    if job.fused or job.fused_norms:
        return [SavedTensor(name, hidden * job.element + 4)]
    return [
        SavedTensor(name, hidden * 4 + 4),
        SavedTensor(f"{name}, scaled", job.trained.norms * hidden * job.element),
    ]


@dataclass(frozen=True)
class Activations:
    """Bytes of one rank, of one micro-batch."""

    checkpoints: float
    """Hidden states that checkpointed layers keep."""
    states: float
    """Position states that they keep; without checkpointing all layers' states."""
    offloaded: float
    """The part of these two that is in the host's memory instead."""
    inside: float
    """The kept inside of layers: all of one that is not checkpointed, of others the part that selective checkpointing
    keeps."""
    recomputed: float
    """The inside of the one layer that is computed again."""
    working: float
    """Gradients of activations while a layer is differentiated."""
    head: float
    """Tensors between the blocks and the loss, freed before a block is differentiated."""
    head_weight: float
    """The gradient of a trained head, which the loss computes in the forward."""
    logits: float
    """One chunk of the loss, for a moment."""


def count(job: Job) -> Activations:
    layout = job.layout
    model = job.model
    tokens = job.tokens
    element = job.element
    ways = layout.tensor
    vocabulary = job.model.vocabulary / job.layout.tensor
    policy = layout.checkpoint_layers
    recomputes = layout.recomputes
    parts = inside(job)
    # of a block without positions
    plain = [each for each in parts if not each.placed and not each.carried]

    def size(tensors: list[SavedTensor], kept: bool = False) -> float:
        """Return bytes per token of all of them, or of those that are kept for the backward."""
        selected = policy == "selective"
        return sum(
            each.bytes
            for each in tensors
            if not (kept and recomputes) or (selected and each.selected)
        )

    last = sum(each.bytes for each in parts if each.carried)
    bare = model.layers - model.placed
    of_blocks = model.placed * size(parts, kept=True) + bare * size(plain, kept=True)
    hidden = model.hidden / ways * element
    state = state_bytes(job)
    checkpointed = model.layers * recomputes
    moved = max(0, checkpointed - 1) * layout.offload_checkpoints
    # the loss computes its gradients in the forward; under tensor parallelism it reads the tokens of all, gathered
    read = model.hidden * element * (1 + (ways > 1)) + sum(
        each.bytes for each in _norm(job, "final")
    )

    # gradients of hidden and state, and of the feed-forward's inner columns, minus the tensor that was needed first; in
    # tiles, of one tile only, and its inside
    frees = _reads(job, "down_proj")
    columns = 3 - frees + (4 - job.fused - (not frees)) * (layout.mlp_tiles > 1)
    working = (
        model.hidden + (model.state + columns * model.inner / layout.mlp_tiles) / ways
    ) * element

    # one chunk: logits, fp32 logarithms, and their gradient in the place of the logits; and the fp32 sum of a trained
    # head's gradient
    chunk = min(tokens, chunk_tokens(-(-model.vocabulary // ways)))
    logits = chunk * (vocabulary * (4 + element) + 2 * model.hidden * element)
    logits += job.trains_head * vocabulary * model.hidden * 4
    return Activations(
        checkpoints=tokens * hidden * (checkpointed - moved),
        states=tokens * state * max(0, model.placed - 1 - moved),
        offloaded=tokens * (hidden + state) * moved,
        inside=tokens * (of_blocks - last * (not recomputes)),
        recomputed=tokens
        * (size(parts) - size(parts, kept=True) - last * (model.placed == 1))
        * recomputes,
        working=tokens * working,
        head=tokens * read,
        head_weight=job.trains_head * vocabulary * model.hidden * element,
        logits=logits,
    )


@dataclass(frozen=True)
class Reading:
    """Bytes of one rank while a model reads without gradients."""

    inside: float
    """Hidden and position state, and the inside of one layer."""
    logits: float


def reading(job: Job) -> Reading:
    """Count the short contexts that LongCE reads at a time: as many as have the tokens of a micro-batch, whole in a
    process although others may share its sequences."""
    model = job.model
    ways = job.layout.tensor
    tokens = job.layout.micro_batch * job.length
    parts = inside(job)
    columns = model.hidden * job.element + state_bytes(job) + sum(each.bytes for each in parts)
    chunk = min(tokens, chunk_tokens(-(-model.vocabulary // ways)))
    return Reading(tokens * columns, chunk * model.vocabulary / ways * (4 + job.element))
