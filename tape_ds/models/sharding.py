"""Interface between a model's forward and several processes that work on the same sequences.

Each process keeps one stretch of every sequence's tokens for embeddings, norms, residuals, position updates and all
else that reads one token at a time. There are two kinds, applied to a model from outside:

- *Sequence parallelism* (:mod:`tape_ds.distributed.ulysses`): linear maps are whole and read the process's tokens;
  attention exchanges them for all tokens of the process's heads.
- *Tensor parallelism* (:mod:`tape_ds.distributed.tensor`): linear maps are cut and read all tokens; hooks around
  attention, feed-forward, embeddings and the last norm gather and sum what processes exchange.

Shape letters: B batch, T tokens of a sequence, t those of this process, N tokens, D hidden size, V vocabulary entries.
"""

from typing import Any, Protocol

import torch
from torch import Tensor


class Shards:
    """One process's part of a forward's sequences; this class: all of them."""

    splits_sequences = False
    """Whether linear maps, the output head and the loss see this process's tokens only, and the loss is a part."""

    def local_tokens(self, x: Tensor, filling: int | None = None, dim: int = 1) -> Tensor:
        """[B, T, ...] -> [B, t, ...], the tokens of this process. Stretches are equally long: pad past the end with
        ``filling``, or repeat the last token (None)."""
        return x

    def mapped_tokens(self, x: Tensor, filling: int | None = None) -> Tensor:
        """[B, T, ...] -> the tokens that this process's linear maps read."""
        if self.splits_sequences:
            return self.local_tokens(x, filling)
        return x

    def agree_on_draws(self, device: torch.device) -> None:
        """Give all these processes the same state of torch's CPU generator."""


UNSHARED = Shards()


class SequenceSharding(Protocol):
    """The attribute ``sequence_sharding`` of a decoder that shares sequences."""

    always: bool
    """Whether in evaluation too; else each process may read other sequences there."""
    caches: bool
    """Whether a cache may hold this process's part of keys and values."""

    def __call__(self, tokens: int) -> Shards: ...


def shards_of(decoder: Any, tokens: int, cached: bool = False) -> Shards:
    """Return the shards of a forward of ``decoder`` over ``tokens`` tokens."""
    sharding: SequenceSharding | None = getattr(decoder, "sequence_sharding", None)
    if sharding is None or not (decoder.training or sharding.always):
        return UNSHARED
    if cached and not sharding.caches:
        raise ValueError(
            "processes that share sequences keep no cache: call the model with use_cache=False"
        )
    return sharding(tokens)


class VocabularyPart(Protocol):
    """One of several processes' rows of an output head."""

    def logits(self, own: Tensor) -> Tensor:
        """Return the logits of all rows."""

    def loss(
        self,
        hidden_ND: Tensor,
        weight: Tensor,
        targets_N: Tensor,
        ignore_index: int,
        given_N: Tensor | None = None,
        cap: float | None = None,
    ) -> Tensor:
        """Return the sum of cross-entropies over all sequences; ``weight`` has this process's rows. With ``given_N``
        the three sums of :func:`tape_ds.kernels.weighted_cross_entropy.weighted_cross_entropy`."""

    def separate_losses(
        self, hidden_ND: Tensor, weight: Tensor, targets_N: Tensor, *, ignore_index: int
    ) -> Tensor:
        """Return the loss of each target, without gradients."""
