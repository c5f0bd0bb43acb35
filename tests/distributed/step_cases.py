"""What the ranks compute for the tests of shared steps: a step of sequence or tensor parallelism, beside it alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any
from unittest import mock

import torch
from deepspeed import comm
from peft import LoraConfig, get_peft_model
from torch import distributed

from tape_ds.attention.shifted_groups import use_groups
from tape_ds.config.sections import Memory
from tape_ds.data.order import IGNORED, PADDING
from tape_ds.distributed.cuts import cut_of, whole_numel
from tape_ds.distributed.layout import Layout
from tape_ds.distributed.tensor import use_tensor_parallelism
from tape_ds.distributed.ulysses import use_sequence_parallel
from tape_ds.errors import UserError
from tape_ds.kernels import linear_cross_entropy
from tape_ds.methods.memory_savings import MemorySavings
from tests.distributed.covering import cover
from tests.models.helpers import VOCABULARY, gradients, tiny_model

SEED = 11


@dataclass(frozen=True)
class Case:
    """One step of training."""

    size: int
    """Processes that work on the same sequences; the ranks beside them have sequences of their own."""
    kind: str = "sequence"
    """What they share: ``sequence``, tokens; ``tensor``, heads and columns."""
    encoding: str = "tape"
    """An entry of the model room's ``ENCODINGS``."""
    heads: str = "gqa"
    sequences: str = "plain"
    """A name of :data:`SEQUENCES`."""
    tokens: int = 12
    checkpointing: bool = False
    lora: bool = False
    logits: bool = False
    """The loss comes from logits, not from the head's own loss."""
    weights: str = ""
    """Weights of targets: ``given``, or ``losses``, from which they follow."""
    dtype: str = "float64"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the configuration."""


def _plain(case: Case, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {}


def _packed(case: Case, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Documents of many lengths, borders on and off those of the shares, and padding at some sequences' ends."""
    batch, tokens = ids.shape
    documents = torch.stack([torch.arange(tokens) // (3 + row) for row in range(batch)])
    documents[1::2, -3:] = PADDING
    return {"document_ids": documents.int(), "position_ids": torch.arange(tokens).expand(batch, -1)}


def _pose(case: Case, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Positions that jump, elsewhere in every sequence."""
    places = torch.arange(ids.shape[1]).expand(len(ids), -1).clone()
    for row in range(len(ids)):
        places[row, 2 + row :] += 5 + 3 * row
    return {"position_ids": places}


def _masked(case: Case, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Padding on the left of some sequences."""
    mask = torch.ones_like(ids)
    mask[::2, :4] = 0
    return {"attention_mask": mask}


SEQUENCES = {"plain": _plain, "packed": _packed, "pose": _pose, "masked": _masked}


TOLERANCE = 1e-12
"""In fp64, relative to the largest entry of each tensor; sums in another order leave some 1e-15."""
ENTRIES = ("rope", "tape", "tape scale", "alibi", "t5", "fire", "fox", "pope", "repo", "cope")
"""Each way that an encoding enters a model: turned queries and keys, a state that moves, a bias, a learned one, more
columns of keys, from attention's input or from parameters, and a bias that follows from the scores."""
DIMENSIONS: dict[str, Sequence[Any]] = {
    "size": (2, 4),
    "kind": ("sequence", "tensor"),
    "encoding": ENTRIES,
    "heads": ("mha", "gqa", "mqa"),
    "sequences": tuple(SEQUENCES),
    "tokens": (12, 13),
    "checkpointing": (False, True),
}
PAIRWISE = [Case(**values) for values in cover(DIMENSIONS)]
PRODUCT = [
    Case(**dict(zip(DIMENSIONS, values, strict=True))) for values in product(*DIMENSIONS.values())
]


def step(case: Case) -> dict[str, float]:
    """On rank 0, how far loss and gradients are from those of one process that reads all sequences; each relative to
    the largest entry of its tensor, or to 0.03 where that is larger."""
    layout, rank = _layout(case), distributed.get_rank()
    batch, items = _batch(case, 2 * layout.data)
    model = _shared(case)
    first = 2 * layout.data_rank(rank)
    own = {
        name: values[first : first + 2] if isinstance(values, torch.Tensor) else values
        for name, values in batch.items()
    }
    # what is drawn must be agreed on
    torch.manual_seed(SEED if rank % case.size == 0 else 100 + rank)
    loss, found = _step(case, model, own, items)
    if case.kind == "tensor":  # whole in each process of a group
        found = {
            name: _whole(model.get_parameter(name), gradient) / case.size
            for name, gradient in found.items()
        }
        loss /= case.size
    distributed.all_reduce(loss)
    for gradient in found.values():
        distributed.all_reduce(gradient)
    if rank:
        return {}
    model = _model(case)
    torch.manual_seed(SEED)
    alone, expected = _step(case, model, batch, items)
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    assert any(gradient.any() for gradient in expected.values())
    return {"loss": _distance(loss, alone)} | {
        name: _distance(found[name], expected[name]) for name in expected
    }


def step_in_chunks(case: Case, entries: int) -> dict[str, float]:
    """:func:`step` where the loss is computed for a chunk of tokens at a time that just holds ``entries`` logits."""
    chunks = {"CHUNK_BYTES": 4 * entries, "CHUNK_MULTIPLE": 1}
    with mock.patch.multiple(linear_cross_entropy, **chunks):
        return step(case)


def step_with_savings(case: Case, savings: Mapping[str, Any]) -> dict[str, float]:
    """:func:`step` of a model with these memory savings, beside one that remembers everything."""

    def shared(case: Case) -> Any:
        model = plain(case)
        MemorySavings(model, Memory(**savings), checkpointing=True, device=torch.device("cpu"))
        return model

    plain = _shared
    with mock.patch(f"{__name__}._shared", shared):
        return step(case)


def _layout(case: Case) -> Layout:
    return Layout(distributed.get_world_size(), **{case.kind: case.size})


def _shared(case: Case) -> Any:
    model, rank = _model(case), distributed.get_rank()
    {"sequence": use_sequence_parallel, "tensor": use_tensor_parallelism}[case.kind](
        model, _layout(case), rank
    )
    return model


def _whole(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
    found = cut_of(parameter)
    return gradient if found is None else found.whole(gradient)


def _distance(mine: torch.Tensor, other: torch.Tensor) -> float:
    assert torch.isfinite(mine).all()
    return float((mine - other).abs().max() / other.abs().max().clamp_min(0.03))


def _step(
    case: Case, model: torch.nn.Module, batch: Mapping[str, torch.Tensor], items: int
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    skip = False if case.logits else None
    out = model(**batch, num_items_in_batch=items, use_cache=False, skip_logits=skip)
    loss = out.loss
    loss.backward()
    found = gradients(model)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert found.keys() == trained, trained - found.keys()
    if not case.weights:
        return loss.detach(), found
    return torch.stack((loss.detach(), out.plain_sum, out.weight_sum)), found


def _model(case: Case) -> Any:
    torch.manual_seed(SEED)
    model: Any = tiny_model(case.heads, case.encoding, **case.options)
    if case.lora:
        model = get_peft_model(
            model, LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
        )
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.3)
            weight.requires_grad_("lora_" in name or ".position." in name or "norm" in name)
    if case.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if case.lora:
            model.enable_input_require_grads()
    return model.to(getattr(torch, case.dtype)).train()


def _batch(case: Case, sequences: int) -> tuple[dict[str, torch.Tensor], int]:
    """Sequences with labels, and how many are targets: in the first sequence not all, in the second a few at its
    end."""
    generator = torch.Generator().manual_seed(SEED)
    ids = torch.randint(3, VOCABULARY, (sequences, case.tokens), generator=generator)
    labels = ids.clone()
    labels[0, 3:5] = IGNORED
    labels[1, : max(case.tokens - 4, 1)] = IGNORED
    own = SEQUENCES[case.sequences](case, ids)
    if "document_ids" in own:
        labels[own["document_ids"] < 0] = IGNORED
    if case.weights:
        own |= _weights(case, labels)
    return {"input_ids": ids, "labels": labels, **own}, int((labels[:, 1:] != IGNORED).sum())


def _weights(case: Case, labels: torch.Tensor) -> dict[str, Any]:
    """One for each label, some 0; or losses with a short context, some unknown, of which the cap cuts some."""
    drawn = torch.rand(
        labels.shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64
    )
    if case.weights == "given":
        return {"target_weights": torch.where(drawn < 0.2, 0, 3 * drawn)}
    return {"target_weights": torch.where(drawn < 0.3, torch.nan, 1 + 4 * drawn), "weight_cap": 1.5}


def moved_bytes(encoding: str, heads: str = "gqa", size: int = 2) -> int:
    """Bytes that this rank hands to all-to-all in a forward and backward."""
    case = Case(size, "sequence", encoding, heads, dtype="float32")
    model, (batch, items) = _shared(case), _batch(case, 2)
    with mock.patch.object(comm, "all_to_all_single", wraps=comm.all_to_all_single) as called:
        _step(case, model, batch, items)
    return sum(call.args[1].nbytes for call in called.call_args_list)


def refusal(arguments: Mapping[str, Any]) -> str:
    """What a model says to a call that its part of a sequence cannot serve; ``group_tokens`` is set, the rest is
    given."""
    case = Case(2, encoding="rope")
    model = _shared(case)
    given = {"use_cache": False, **arguments}
    if group := given.pop("group_tokens", None):
        use_groups(model, group)
    try:
        model(**_batch(case, 2)[0], **given)
    except ValueError as error:
        return str(error)
    return ""


def part_of_a_sequence(size: int, tokens: int) -> dict[str, Any]:
    """What a rank's forward gives of its share: shapes, and the loss without a count of targets."""
    case = Case(size, tokens=tokens)
    model = _shared(case)
    batch, _ = _batch(case, 2)
    out = model(**batch, use_cache=False, skip_logits=False)
    loss = out.loss.detach()
    distributed.all_reduce(loss)
    groups = distributed.get_world_size() // size
    alone = _model(case)(**batch, use_cache=False).loss
    return {"logits": tuple(out.logits.shape), "loss": float(loss / groups), "alone": float(alone)}


def generated(size: int) -> bool:
    """Whether a model in pieces generates what a whole one does."""
    case, rank = Case(size, "tensor"), distributed.get_rank()
    team = rank // size
    ids = torch.randint(3, VOCABULARY, (2, 5 + team), generator=torch.Generator().manual_seed(team))
    generation = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    alone = _model(case).eval().generate(ids, **generation)
    return torch.equal(_shared(case).eval().generate(ids, **generation), alone)


def foreign_id(where: str, size: int) -> str:
    """What a model in pieces says to a token or a label that is none of its vocabulary."""
    batch, _ = _batch(Case(size), 2)
    batch[where][1, 5] = VOCABULARY
    model = _shared(Case(size, "tensor"))
    try:
        model(**batch)
    except RuntimeError as error:
        return str(error)
    return ""


def whole_numels(size: int) -> bool:
    """Whether a model in pieces has as many parameters as a whole one, each counted as what it is a piece of."""
    model = _shared(Case(size, "tensor"))
    found = [whole_numel(weight) for weight in model.parameters()]
    return found == [weight.numel() for weight in _model(Case(size)).parameters()]


def refused_cut(change: str) -> str:
    """What is said to a model that cannot be cut."""
    model = _model(Case(2, encoding="tape"))
    if change == "attention_bias":
        model.config.attention_bias = True
    elif change == "dora":
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], use_dora=True))
    elif change == "weights":
        torch.nn.init.constant_(model.model.norm.weight, 1 + distributed.get_rank())
    elif change == "adapted head":
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head"]))
    elif change == "foreign head":
        model.lm_head = torch.nn.Linear(*reversed(model.lm_head.weight.shape), bias=False)
    try:
        use_tensor_parallelism(
            model, Layout(distributed.get_world_size(), tensor=2), distributed.get_rank()
        )
    except (UserError, ValueError, RuntimeError) as error:
        return str(error)
    return ""
