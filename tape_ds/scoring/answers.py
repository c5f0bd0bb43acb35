"""Loss and token accuracy of a model on reference answers, each after its prompt.

Cheaper than generating answers, and independent of single words; SCROLLS reports generated answers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from tape_ds.scoring import Each, in_turn
from tape_ds.scoring.losses import target_losses


@dataclass(frozen=True)
class Prompt:
    """A prompt with its answer."""

    input_ids_1T: Tensor
    """int64 [1, T]."""
    targets: int
    """Length of the answer, the last tokens: 1 .. T - 1."""


@dataclass(frozen=True)
class AnswerLoss:
    """Means over the tokens of all answers, EOS included."""

    nll: float
    """Loss in nats per token."""
    foreseen: float
    """Share of the tokens that were the most likely one."""
    targets: int
    examples: int


def score(model: nn.Module, prompts: Sequence[Prompt], *, each: Each = in_turn) -> AnswerLoss:
    """Return the loss of ``model`` on the answers.

    Args:
        model: see :func:`tape_ds.scoring.losses.target_losses`.
        prompts: one or more.
        each: see :data:`tape_ds.scoring.Each`. Every prompt calls the output head once, whatever the lengths.
    """
    if not prompts:
        raise ValueError("no answers to score")

    def sums(prompt: Prompt) -> tuple[float, int]:
        first = prompt.input_ids_1T.shape[-1] - prompt.targets
        nll_1N, foreseen_1N = target_losses(
            model, prompt.input_ids_1T, first=first, chunk=prompt.targets
        )
        return float(nll_1N.sum()), int(foreseen_1N.sum())

    losses, correct = zip(*each(sums, prompts), strict=True)
    # every token weighs the same, so a long answer counts for more
    targets = sum(prompt.targets for prompt in prompts)
    nll = math.fsum(losses) / targets
    return AnswerLoss(nll, sum(correct) / targets, targets, len(prompts))
