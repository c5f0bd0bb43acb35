"""Perplexity by length: how well a model predicts the same documents when it may look back so far and no further.

:func:`score_windows` scores any windows of a text (:mod:`tape_ds.scoring.windows`), and :func:`pool` makes one figure
of them.

:func:`score`, which a training run calls, is the convention ``blocks``: a document is cut into consecutive blocks of
``length`` tokens, each predicted on its own; what is left at its end, fewer than ``length`` tokens, is dropped. Every
token of a block but its first is a target, and perplexity is exp of the mean loss over all targets of all documents:
long documents weigh as much as they have tokens. (TAPE's published evaluation takes the mean over batches of unequal
size instead.)

Lengths compare where the same documents are scored at each. A document whose length every scored length divides
is read whole at all of them; only the first tokens of the blocks, 1 in ``length``, differ.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tape_ds.scoring import loss_by_position
from tape_ds.scoring.each import Each, in_turn
from tape_ds.scoring.windows import Window, blocks


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
        return _exp(self.nll)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the ``perplexity``."""
        return {**asdict(self), "perplexity": self.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Perplexity":
        """Return the inverse of :meth:`to_dict`; ``perplexity`` is derived again."""
        return cls(values["length"], values["nll"], values["targets"], values["blocks"])


def score(
    model: nn.Module, documents_1T: Sequence[Tensor], length: int, *, chunk: int = 1024, each: Each = in_turn
) -> Perplexity:
    """Return perplexity of ``model`` on ``documents_1T`` in blocks of ``length`` tokens.

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
    pieces = [
        document_1T[:, window.start : window.end]
        for document_1T in documents_1T
        for window in blocks(document_1T.shape[-1], length)
    ]

    def mean_loss(block_1T: Tensor) -> float:
        return loss_by_position.score(model, block_1T, span=length, chunk=chunk).mean

    losses = each(mean_loss, pieces)  # every block has as many targets, so the mean of means is the mean
    return Perplexity(length, math.fsum(losses) / len(pieces), (length - 1) * len(pieces), len(pieces))


@dataclass(frozen=True)
class WindowLoss:
    """Sums over the targets of one window."""

    nll: float
    """Loss in nats, summed in fp64."""
    foreseen: int
    """Targets that were the most likely token."""
    targets: int


def score_windows(
    model: nn.Module,
    windows: Sequence[tuple[np.ndarray, Window]],
    *,
    begin: int | None = None,
    batch: int = 1,
    chunk: int = 1024,
) -> list[WindowLoss]:
    """Return the losses of ``windows``, in their order.

    Args:
        model: as :func:`tape_ds.scoring.loss_by_position.target_losses` takes it.
        windows: pairs of a text's token ids, int [n], and a window of it.
        begin: id of a token that each window is read behind; None: none.
        batch: neighbours of one shape that are read at once. It changes nothing but the rounding.
        chunk: positions whose logits exist at once.
    """
    found: list[WindowLoss] = []
    for same in _batches(windows, batch):
        sequences = [sequence(ids, window, begin) for ids, window in same]
        first = sequences[0].shape[-1] - same[0][1].targets
        nll_BN, foreseen_BN = loss_by_position.target_losses(model, torch.stack(sequences), first=first, chunk=chunk)
        sums = zip(nll_BN.sum(dim=-1).tolist(), foreseen_BN.sum(dim=-1).tolist(), strict=True)
        found += [WindowLoss(nll, foreseen, nll_BN.shape[-1]) for nll, foreseen in sums]
    return found


def _batches(windows: Sequence[tuple[np.ndarray, Window]], batch: int) -> Iterator[Sequence[tuple[np.ndarray, Window]]]:
    """Neighbours that have as many tokens and targets, at most ``batch`` of them together."""
    for _, alike in groupby(windows, lambda pair: (pair[1].end - pair[1].start, pair[1].targets)):
        same = list(alike)
        yield from (same[at : at + batch] for at in range(0, len(same), batch))


def sequence(ids: np.ndarray, window: Window, begin: int | None) -> Tensor:
    """int64 [T]: a window's tokens, behind ``begin``."""
    own = torch.from_numpy(ids[window.start : window.end].astype(np.int64))
    return own if begin is None else torch.cat([own.new_tensor([begin]), own])


@dataclass(frozen=True)
class Pooled:
    """Windows of several documents as one figure: every target weighs the same."""

    nll: float
    """Mean over all targets, in nats per token."""
    standard_error: float | None
    """Of ``nll``, if other documents of the kind were drawn; None for fewer than two."""
    accuracy: float
    """Share of the targets that were the most likely token."""
    targets: int
    windows: int
    documents: int

    @property
    def perplexity(self) -> float:
        """exp(nll); inf where that is beyond a float."""
        return _exp(self.nll)


def pool(documents: Iterable[Sequence[WindowLoss]]) -> Pooled:
    """Return the windows of each document as one figure. The sums are exact, so neither order nor grouping matters.

    The standard error takes documents as what is drawn, since windows of one document are alike, and the mean as a
    ratio of two sums over them (Cochran, Sampling Techniques, 1977, section 2.11, with n - 1 degrees of freedom).

    Raises:
        ValueError: no target.
    """
    parts = [each for each in documents if each]
    everything = [window for each in parts for window in each]
    targets = sum(window.targets for window in everything)
    if targets == 0:
        raise ValueError("no window has a target")
    nll = math.fsum(window.nll for window in everything) / targets
    deviations = [math.fsum(window.nll - nll * window.targets for window in each) for each in parts]
    count = len(parts)
    spread = math.fsum(each * each for each in deviations) * count / (count - 1) if count > 1 else None
    error = None if spread is None else math.sqrt(spread) / targets
    foreseen = sum(window.foreseen for window in everything)
    return Pooled(nll, error, foreseen / targets, targets, len(everything), count)


def _exp(nll: float) -> float:
    return math.exp(nll) if not nll > 700 else math.inf
