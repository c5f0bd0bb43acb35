"""Perplexity by length: how well a model predicts the same documents with a limited context.

:func:`score_windows` scores any windows of a text (:mod:`tape_ds.scoring.windows`), and :func:`pool` combines them.

:func:`score`, which training runs call, is the convention ``blocks``: a document is cut into consecutive blocks of
``length`` tokens, each predicted separately; the rest, fewer than ``length`` tokens, is dropped. Every token of a block
but its first is a target, and perplexity is exp of the mean loss over all targets of all documents: documents weigh as
much as they have tokens. (TAPE's published evaluation takes the mean over batches of unequal size instead.)

Lengths compare if the same documents are scored at each. A document whose length is a multiple of each scored length is
read whole at all of them; only the first tokens of the blocks, 1 in ``length``, differ.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tape_ds.scoring import Each, in_turn, loss_by_position
from tape_ds.scoring.windows import Window, blocks


@dataclass(frozen=True)
class Perplexity:
    """A model's loss on blocks of one length."""

    length: int
    """Tokens per block."""
    nll: float
    """Mean loss over all targets, in nats per token."""
    targets: int
    blocks: int

    @property
    def value(self) -> float:
        return _exp(self.nll)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "perplexity": self.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Perplexity":
        return cls(values["length"], values["nll"], values["targets"], values["blocks"])


def score(
    model: nn.Module, documents_1T: Sequence[Tensor], length: int, *, chunk: int = 1024, each: Each = in_turn
) -> Perplexity:
    """Return the perplexity of ``documents_1T`` in blocks of ``length`` tokens.

    Args:
        model: see :func:`tape_ds.scoring.loss_by_position.score`.
        documents_1T: token ids int64 [1, T], each of ``length`` tokens or more.
        length: 2 or more.
        chunk: positions whose logits exist at once.
        each: see :data:`tape_ds.scoring.Each`; called once, with all blocks.

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
    # every block has the same number of targets, so the mean of means is the mean
    losses = each(lambda block_1T: loss_by_position.score(model, block_1T, span=length, chunk=chunk).mean, pieces)
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
        model: see :func:`tape_ds.scoring.loss_by_position.target_losses`.
        windows: pairs of a text's token ids, int [n], and a window of it.
        begin: id of the token that each window is read after.
        batch: neighbours of the same shape that are read at once; changes only the rounding.
        chunk: positions whose logits exist at once.
    """
    losses: list[WindowLoss] = []
    for _, alike in groupby(windows, lambda pair: (pair[1].end - pair[1].start, pair[1].targets)):
        same = list(alike)
        for at in range(0, len(same), batch):
            together = same[at : at + batch]
            ids_BT = torch.stack([sequence(ids, window, begin) for ids, window in together])
            first = ids_BT.shape[-1] - together[0][1].targets
            nll_BN, foreseen_BN = loss_by_position.target_losses(model, ids_BT, first=first, chunk=chunk)
            sums = zip(nll_BN.sum(dim=-1).tolist(), foreseen_BN.sum(dim=-1).tolist(), strict=True)
            losses += [WindowLoss(nll, foreseen, nll_BN.shape[-1]) for nll, foreseen in sums]
    return losses


def sequence(ids: np.ndarray, window: Window, begin: int | None) -> Tensor:
    """Return a window's tokens, int64 [T], after ``begin``."""
    own = torch.from_numpy(ids[window.start : window.end].astype(np.int64))
    return own if begin is None else torch.cat([own.new_tensor([begin]), own])


@dataclass(frozen=True)
class Pooled:
    """Windows of several documents combined; every target weighs the same."""

    nll: float
    """Mean over all targets, in nats per token."""
    standard_error: float | None
    """Of ``nll``, over documents; None for fewer than two."""
    accuracy: float
    """Share of the targets that were the most likely token."""
    targets: int
    windows: int
    documents: int

    @property
    def perplexity(self) -> float:
        return _exp(self.nll)


def pool(documents: Iterable[Sequence[WindowLoss]]) -> Pooled:
    """Combine the windows of each document. The sums are exact, so neither order nor grouping matters.

    The standard error treats documents as the sample, since windows of one document are alike, and the mean as a ratio
    of two sums over them (Cochran, Sampling Techniques, 1977, section 2.11, with n - 1 degrees of freedom).

    Raises:
        ValueError: no target.
    """
    scored = [document for document in documents if document]
    windows = [window for document in scored for window in document]
    targets = sum(window.targets for window in windows)
    if targets == 0:
        raise ValueError("no window has a target")
    nll = math.fsum(window.nll for window in windows) / targets
    foreseen = sum(window.foreseen for window in windows)

    error, count = None, len(scored)
    if count > 1:
        deviations = [math.fsum(window.nll - nll * window.targets for window in document) for document in scored]
        squares = math.fsum(each * each for each in deviations)
        error = math.sqrt(squares * count / (count - 1)) / targets
    return Pooled(nll, error, foreseen / targets, targets, len(windows), count)


def _exp(nll: float) -> float:
    return math.exp(nll) if not nll > 700 else math.inf  # beyond a float
