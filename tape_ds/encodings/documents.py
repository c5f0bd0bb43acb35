"""Sums and order of tokens within documents, for encodings that count from the tokens themselves.

Shape letters: B batch, T tokens of this call, S keys, cached ones included, C numbers of a token.
"""

import torch
from torch import Tensor


def together(documents_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Return an order of tokens that joins every document's, which may be interleaved, and whether a document begins at
    a token; both [B, S]."""
    order_BS = documents_BS.argsort(dim=1, stable=True)
    documents = documents_BS.gather(1, order_BS)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return order_BS, begins


def running_sums(numbers_BCT: Tensor, documents_BT: Tensor | None) -> Tensor:
    """Return the sums of numbers [B, C, T] over each token's document, up to and with the token, among the tokens of
    one call. Document -1 is padding, which counts as 0; None: one document without padding."""
    if documents_BT is None:
        return numbers_BCT.cumsum(-1)
    order_BT, begins_BT = together(documents_BT)
    order_BCT = order_BT[:, None].expand(numbers_BCT.shape)
    sorted_BCT = numbers_BCT.masked_fill((documents_BT < 0)[:, None], 0).gather(-1, order_BCT)
    sums_BCT = sorted_BCT.cumsum(-1)
    counted = torch.arange(sums_BCT.shape[-1], device=sums_BCT.device)
    first_BT = torch.where(begins_BT, counted, 0).cummax(1).values
    before_BCT = (sums_BCT - sorted_BCT).gather(-1, first_BT[:, None].expand(sums_BCT.shape))
    return torch.empty_like(sums_BCT).scatter(-1, order_BCT, sums_BCT - before_BCT)


def last_cached(documents_BS: Tensor, offset: int | Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return the place of the last cached token of each new token's document (0 where there is none), and whether there
    is one; both [B, T]. At a tensor offset ``documents_BS`` is of the cache's whole buffer."""
    places_S = torch.arange(documents_BS.shape[1], device=documents_BS.device)
    new_BT = documents_BS.index_select(1, places_S[:tokens] + offset)
    cached_BS = documents_BS.masked_fill(places_S >= offset, -1)
    order_BS = cached_BS.argsort(dim=1, stable=True)
    last_BT = torch.searchsorted(cached_BS.gather(1, order_BS), new_BT, right=True) - 1
    last_BT = order_BS.gather(1, last_BT.clamp(min=0))
    known_BT = (cached_BS.gather(1, last_BT) == new_BT) & (new_BT >= 0)
    return last_BT.masked_fill(~known_BT, 0), known_BT
