"""How well a model foresees reference answers: their loss, each behind its prompt.

Cheaper than writing answers and comparing them, and never a matter of one word; what SCROLLS reports is the latter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tape_ds.scoring.each import Each, in_turn
from tape_ds.scoring.loss_by_position import target_losses


@dataclass(frozen=True)
class Asked:
    """A prompt with its answer."""

    input_ids_1T: Tensor
    """int64 [1, T]."""
    targets: int
    """Of these the last so many are the answer, 1 .. T - 1."""


@dataclass(frozen=True)
class AnswerLoss:
    """Means over the tokens of all answers, EOS among them."""

    nll: float
    """Loss in nats per token."""
    foreseen: float
    """Share of the tokens that were the most likely one."""
    targets: int
    examples: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AnswerLoss":
        """Return the inverse of :meth:`to_dict`."""
        return cls(**values)


def score(model: nn.Module, asked: Sequence[Asked], *, each: Each = in_turn) -> AnswerLoss:
    """Return the loss of ``model`` on the answers.

    Args:
        model: as :func:`tape_ds.scoring.loss_by_position.score` takes it.
        asked: one or more.
        each: calls the scoring of one on every one; under ZeRO-3 one that keeps all ranks in step. Each calls the
            output head once, whatever the lengths.

    Raises:
        ValueError: nothing to score.
    """
    if not asked:
        raise ValueError("no answers to score")

    def sums(one: Asked) -> tuple[float, int]:
        first = one.input_ids_1T.shape[-1] - one.targets
        with torch.no_grad():
            nll_1N, foreseen_1N = target_losses(model, one.input_ids_1T, first=first, chunk=one.targets)
        return float(nll_1N.sum()), int(foreseen_1N.sum())

    found = each(sums, asked)
    targets = sum(one.targets for one in asked)
    nll = math.fsum(loss for loss, _ in found) / targets
    return AnswerLoss(nll, sum(right for _, right in found) / targets, targets, len(asked))
