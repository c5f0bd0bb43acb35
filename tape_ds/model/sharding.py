"""The seam of sequence parallelism: a forward keeps its share of every row's tokens, and trades it for heads.

Several processes hold the same rows. Each keeps one stretch of their tokens through embeddings, norms, feed-forward,
position state, output head and loss. Only attention needs a row as a whole: there a process gives its tokens of all
heads for all tokens of its heads, and gives them back behind it (DeepSpeed-Ulysses, Jacobs et al. 2023,
arXiv:2309.14509, Section 3). How they do it is not the model's business: :mod:`tape_ds.parallel.ulysses` says.

Shape letters: B batch, T tokens of a row, t those of this process, H query heads, G key/value heads, h and g those of
this process, K head size, V value width.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor


class Shards(Protocol):
    """How the processes that hold the same rows share them, as one of them sees it; for rows of T tokens."""

    def mine(self, x: Tensor, filling: int | None = None) -> Tensor:
        """[B, T, ...] -> [B, t, ...], the tokens of this process. Rows are shared evenly: what lies behind their end is
        ``filling``, or with None their last token again."""

    def heads(self, count: int) -> slice:
        """Which of a model's ``count`` query heads are this process's."""

    def to_heads(self, q_BHtK: Tensor, k_BGtK: Tensor, v_BGtV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """-> [B, h, T, K], [B, g, T, K], [B, g, T, V]; query head i reads key/value head i // (h / g)."""

    def to_tokens(self, out_BhTV: Tensor) -> Tensor:
        """-> [B, H, t, V]; 0 behind the rows' end."""

    def agree_on_draws(self, device: torch.device) -> None:
        """From here on torch's CPU generator draws the same in all these processes."""


ShareRows: TypeAlias = Callable[[int], Shards]
"""T -> shards of rows of T tokens."""


def shards_of(decoder: Any, tokens: int, cached: bool = False) -> Shards | None:
    """How ``decoder`` shares rows of so many tokens; None where it has them to itself, and always outside training: in
    evaluation mode every process may read rows of its own.

    Raises:
        ValueError: rows are shared, and ``cached``: a cache would hold some of the heads only.
    """
    if not decoder.training or decoder.share_rows is None:
        return None
    if cached:
        raise ValueError("processes that share rows keep no cache: call the model with use_cache=False")
    return decoder.share_rows(tokens)


def keep_own(
    shards: Shards | None, given: Tensor, documents_BT: Tensor | None, places_BTN: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """What a process reads of whole rows: token ids (or embeddings), documents and places of its own tokens. Behind the
    rows' end is padding, at the place of the last token."""
    if shards is None:
        return given, documents_BT, places_BTN
    own_documents = None if documents_BT is None else shards.mine(documents_BT, filling=-1)
    return shards.mine(given, filling=0), own_documents, shards.mine(places_BTN)
