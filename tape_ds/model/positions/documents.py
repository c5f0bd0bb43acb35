"""Tokens of a sequence by the document they belong to, for encodings that count from the tokens themselves.

Shape letters: B batch, T tokens of this call, S keys, cached ones included, C numbers of a token.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def together(documents_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order in which every document's tokens stand together, each in its own order, and whether a document
    begins there; both [B, S]. Documents may be interleaved."""
    order_BS = documents_BS.argsort(dim=1, stable=True)
    documents = documents_BS.gather(1, order_BS)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return order_BS, begins


def running_sums(new_BCT: Tensor, past_BCS: Tensor | None, documents_BS: Tensor | None, offset: int | Tensor) -> Tensor:
    """Return the sums of a number a token over its document, up to and with the token, for the tokens of this call.

    Args:
        new_BCT: the numbers of this call's tokens; C sums run beside each other.
        past_BCS: the sums of the tokens in the cache; at a tensor offset of its whole buffer. None: there are none.
        documents_BS: document of every token, -1 = padding, which counts as 0; None: one document without padding.
        offset: place of the first token of this call.
    """
    tokens, device = new_BCT.shape[-1], new_BCT.device
    places = torch.arange(tokens, device=device) + offset
    if documents_BS is None:
        sums = new_BCT.cumsum(-1)
        if past_BCS is None:
            return sums
        last = past_BCS.index_select(-1, (places[:1] - 1).clamp(min=0))
        return sums + last.masked_fill(places[:1] == 0, 0)
    if past_BCS is None:
        numbers = new_BCT
    elif isinstance(offset, Tensor):
        numbers = past_BCS.index_copy(-1, places, new_BCT)
    else:
        numbers = torch.cat((past_BCS, new_BCT), dim=-1)
    documents_BS = documents_BS[:, : numbers.shape[-1]]
    order_BS, begins_BS = together(documents_BS)
    numbers = numbers.masked_fill((documents_BS < 0)[:, None], 0)
    order_BCS = order_BS[:, None].expand(numbers.shape)
    sorted_BCS = numbers.gather(-1, order_BCS)
    # a cached token's own number again: its sum less that of the token before it in the document
    before_BCS = F.pad(sorted_BCS[..., :-1], (1, 0)).masked_fill(begins_BS[:, None], 0)
    cached_BS = order_BS < offset
    sorted_BCS = torch.where(cached_BS[:, None], sorted_BCS - before_BCS, sorted_BCS)
    sums_BCS = sorted_BCS.cumsum(-1)
    counted = torch.arange(sums_BCS.shape[-1], device=device)
    first_BS = torch.where(begins_BS, counted, 0).cummax(1).values[:, None].expand(numbers.shape)
    sums_BCS = sums_BCS - (sums_BCS - sorted_BCS).gather(-1, first_BS)  # less the documents before
    places_BCT = order_BS.argsort(dim=1).index_select(1, places)[:, None].expand(*numbers.shape[:2], -1)
    return sums_BCS.gather(-1, places_BCT)
