"""Loss by position before and after training, on held-out documents, within the run that trains.

Before training two models are scored from the same weights: ``untouched`` (the base model, its own angles) and
``untrained`` (its angles scaled as the recipe says, which is also what the TAPE model computes at step 0). Jobs, one
per variant and document, are spread over the ranks.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from peft import PeftModel
from torch import Tensor

from tape_ds.model.llama import TapeForCausalLM, plain_rope
from tape_ds.scoring.loss_by_position import SpanLosses, score

Model: TypeAlias = TapeForCausalLM | PeftModel
Variants: TypeAlias = Mapping[str, dict[str, Any] | None]
Scores: TypeAlias = dict[str, dict[str, SpanLosses]]
"""variant -> document -> losses."""


@dataclass(frozen=True)
class HeldOut:
    """One held-out document, cut to the length that is scored."""

    name: str
    input_ids_1T: Tensor


def score_variants(
    model: Model,
    documents: Sequence[HeldOut],
    variants: Variants,
    span: int,
) -> Scores:
    """Score every document under every variant; every rank must call it and gets all results.

    Args:
        model: the model itself, engine hooks on it or not.
        documents: of equal length where ZeRO-3 shards the model, since all ranks gather the same weights together.
        variants: name -> ``rope_parameters`` to compute with as a plain RoPE model, or None for the model as it is.
        span: positions per span.
    """
    jobs = [(variant, document) for variant in variants for document in documents]
    rank, world = _rank_and_world()
    mine: list[tuple[str, str, SpanLosses]] = []
    for first in range(0, len(jobs), world):
        turn = first + rank
        # a rank without a job of its own repeats one, because under ZeRO-3 all ranks must take part in each forward
        variant, document = jobs[turn] if turn < len(jobs) else jobs[first]
        losses = _score_one(model, document, variants[variant], span)
        if turn < len(jobs):
            mine.append((variant, document.name, losses))
    gathered = [mine]
    if world > 1:
        gathered = [None] * world  # type: ignore[list-item]
        torch.distributed.all_gather_object(gathered, mine)
    results: Scores = {variant: {} for variant in variants}
    for variant, name, losses in (entry for part in gathered for entry in part):
        results[variant][name] = losses
    return results


def _score_one(model: Model, document: HeldOut, angles: dict[str, Any] | None, span: int) -> SpanLosses:
    if angles is None:
        return score(model, document.input_ids_1T, span)
    bare = model.get_base_model() if isinstance(model, PeftModel) else model
    adapters = model.disable_adapter() if isinstance(model, PeftModel) else contextlib.nullcontext()
    with adapters, plain_rope(bare, angles):
        return score(model, document.input_ids_1T, span)


def _rank_and_world() -> tuple[int, int]:
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def write_scores(path: Path, scores: Scores) -> None:
    """Store scores as JSON."""
    plain = {variant: {name: losses.to_dict() for name, losses in part.items()} for variant, part in scores.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain, indent=2) + "\n")


def read_scores(path: Path) -> Scores:
    """Scores stored by :func:`write_scores`; empty when there are none."""
    if not path.exists():
        return {}
    plain = json.loads(path.read_text())
    return {
        variant: {name: SpanLosses.from_dict(losses) for name, losses in part.items()}
        for variant, part in plain.items()
    }
