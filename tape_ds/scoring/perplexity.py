"""Perplexity by length: how well a model predicts the same documents when it may look back so far and no further.

A document is cut into consecutive blocks of ``length`` tokens, each predicted on its own; what is left at its end,
fewer than ``length`` tokens, is dropped. Every token of a block but its first is a target, and perplexity is exp of the
mean loss over all targets of all documents: long documents weigh as much as they have tokens. (TAPE's published
evaluation takes the mean over batches of unequal size instead.)

Lengths compare where the same documents are scored at each. A document whose length every scored length divides
is read whole at all of them; only the first tokens of the blocks, 1 in ``length``, differ.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from tape_ds.scoring import loss_by_position

Each = Callable[[Callable[[Tensor], float], Sequence[Tensor]], Sequence[float]]
"""How a function is called on every block: in turn, or shared out over the ranks of a run."""


@dataclass(frozen=True)
class Perplexity:
    """A model's loss on blocks of one length."""

    length: int
    """Tokens a block."""
    nll: float
    """Mean loss over all targets, in nats per token."""
    targets: int
    """Tokens that were predicted."""
    blocks: int
    """Blocks that were read."""

    @property
    def value(self) -> float:
        """exp(nll); inf where that is beyond a float."""
        return math.exp(self.nll) if not self.nll > 700 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the ``perplexity``."""
        return {**asdict(self), "perplexity": self.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Perplexity":
        """The inverse of :meth:`to_dict`; ``perplexity`` is derived again."""
        return cls(values["length"], values["nll"], values["targets"], values["blocks"])


def in_turn(work: Callable[[Tensor], float], blocks: Sequence[Tensor]) -> list[float]:
    """``work`` on every block, one after another."""
    return [work(block) for block in blocks]


def score(
    model: nn.Module, documents_1T: Sequence[Tensor], length: int, *, chunk: int = 1024, each: Each = in_turn
) -> Perplexity:
    """Perplexity of ``model`` on ``documents_1T`` in blocks of ``length`` tokens.

    Args:
        model: as :func:`tape_ds.scoring.loss_by_position.score` takes it.
        documents_1T: token ids int64 [1, T], each of ``length`` tokens or more.
        length: 2 or more.
        chunk: positions whose logits exist at once.
        each: calls the scoring of a block on every block; under ZeRO-3 one that keeps all ranks in step.

    Raises:
        ValueError: no documents, or one shorter than ``length``: left out, it would change what is compared.
    """
    if length < 2:
        raise ValueError(f"length = {length}: a block needs 2 tokens, the first is no target")
    if not documents_1T:
        raise ValueError("no documents to score")
    shortest = min(document_1T.shape[-1] for document_1T in documents_1T)
    if shortest < length:
        raise ValueError(f"a document of {shortest} tokens has no block of {length}")
    blocks = [block_1T for document_1T in documents_1T for block_1T in _blocks(document_1T, length)]

    def mean_loss(block_1T: Tensor) -> float:
        return loss_by_position.score(model, block_1T, span=length, chunk=chunk).mean

    losses = each(mean_loss, blocks)  # every block has as many targets, so the mean of means is the mean
    return Perplexity(length, math.fsum(losses) / len(blocks), (length - 1) * len(blocks), len(blocks))


def _blocks(document_1T: Tensor, length: int) -> list[Tensor]:
    """Consecutive blocks [1, length]; the remainder is dropped."""
    whole = document_1T.shape[-1] // length * length
    return list(document_1T[:, :whole].split(length, dim=-1))
