"""The seam of sequence and tensor parallelism: what a forward asks where several processes work on the same sequences.

They hold the same sequences, and each keeps one stretch of their tokens through embeddings, norms, residuals, position
updates and whatever else looks at one token at a time. There are two kinds:

- *Sequence parallelism* (DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv:2309.14509, Section 3): linear maps are whole and
  work on the process's tokens. Attention needs a sequence as a whole: a process gives its tokens of all heads for all
  tokens of its heads, and gets its tokens back behind it.
- *Tensor parallelism* with sequence-parallel norms (Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053, and Korthikanti
  et al. 2022, arXiv:2205.05198, Section 4.2.2): a process has some heads and columns of every linear map. In front of
  them the tokens of all processes are gathered, and behind them the parts of the sum are added up where each token is
  kept. The position state of the process's heads is fetched for the rotation, and what attention made of it goes back:
  updates across heads then happen where a token is kept, with all of its heads.

How they do it is not the model's business: :mod:`tape_ds.distributed` says. A kind answers some of the questions below;
:class:`Shards` itself is a process that has everything to itself.

Shape letters: B batch, T tokens of a sequence, t those of this process, H query heads, G key/value heads, h and g those
of this process, K head size, V value width, C columns of the state, D hidden size, N integers that place a token.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Shards:
    """How the processes that hold the same sequences share them, as one of them sees it; for sequences of T tokens.
    This one does not share: everything stays what it is."""

    splits_sequences = False
    """Whether linear maps, the output head and the loss see this process's tokens only, and the loss is a part."""

    def mine(self, x: Tensor, filling: int | None = None, dim: int = 1) -> Tensor:
        """[B, T, ...] -> [B, t, ...], the tokens of this process. Sequences are shared evenly: what lies behind their
        end is ``filling``, or with None their last token again."""
        return x

    def heads(self, count: int) -> slice:
        """Return which of a model's ``count`` query heads are this process's."""
        return slice(None)

    def agree_on_draws(self, device: torch.device) -> None:
        """From here on torch's CPU generator draws the same in all these processes."""

    def embed(self, embedding: nn.Module, ids_BT: Tensor) -> Tensor:
        """Return embeddings [B, t, D] of whole sequences."""
        embedded: Tensor = embedding(ids_BT)
        return embedded

    def gather(self, x_BtD: Tensor) -> Tensor:
        """Return hidden states as linear maps and the output head read them."""
        return x_BtD

    def scatter(self, y_BTD: Tensor) -> Tensor:
        """Return what linear maps gave, for the tokens of this process."""
        return y_BTD

    def rotated(self, positions_BTN: Tensor) -> Tensor:
        """Return places of the tokens whose queries and keys this process rotates."""
        return positions_BTN

    def to_rotate(self, start: Tensor | None, state: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """What queries and keys are rotated by: the start of :meth:`rotated`'s places, and the state
        [B, G, t, C] -> [B, g, T, C]."""
        return start, state

    def to_update(self, start: Tensor | None, moved: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The same start, and what attention made of the state ([B, h, T, C] -> [B, H, t, C]), as updates read them."""
        return start, moved

    def key_heads(self, x_BGTK: Tensor) -> Tensor:
        """Keys or values as the linear map gave them -> those of this process's heads, before they are rotated."""
        return x_BGTK

    def to_heads(self, q_BHtK: Tensor, k_BGtK: Tensor, v_BGtV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """-> [B, h, T, K], [B, g, T, K], [B, g, T, V]; query head i reads key/value head i // (h / g)."""
        return q_BHtK, k_BGtK, v_BGtV

    def to_tokens(self, out_BhTV: Tensor) -> Tensor:
        """-> [B, H, t, V]; 0 behind the sequences' end."""
        return out_BhTV


UNSHARED = Shards()


class SequenceSharding(Protocol):
    """What a decoder asks how its sequences are shared."""

    always: bool
    """In evaluation too; else every process may read sequences of its own there."""
    caches: bool
    """Whether a cache may hold this process's part of keys and values."""

    def __call__(self, tokens: int) -> Shards:
        """How sequences of so many tokens are."""


def shards_of(decoder: Any, tokens: int, cached: bool = False) -> Shards:
    """Return how ``decoder`` shares sequences of so many tokens; see :class:`SequenceSharding`.

    Raises:
        ValueError: sequences are shared so that no cache can be kept, and ``cached``.
    """
    share: SequenceSharding | None = getattr(decoder, "sequence_sharding", None)
    if share is None or not (decoder.training or share.always):
        return UNSHARED
    if cached and not share.caches:
        raise ValueError("processes that share sequences keep no cache: call the model with use_cache=False")
    return share(tokens)


class VocabularyPart(Protocol):
    """An output head whose rows several processes share, as one of them sees it."""

    def logits(self, own: Tensor) -> Tensor:
        """Logits of its rows -> of all."""

    def loss(self, hidden_ND: Tensor, weight: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        """Return sum of cross-entropies over all sequences; ``weight`` has its own."""
