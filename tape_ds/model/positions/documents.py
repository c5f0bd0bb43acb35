"""Tokens of a row by the document they belong to, for encodings that count from the tokens themselves.

Shape letters: B batch, S keys, cached ones included.
"""

import torch
from torch import Tensor


def together(documents_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order in which every document's tokens stand together, each in its own order, and whether a document
    begins there; both [B, S]. Documents may be interleaved."""
    order_BS = documents_BS.argsort(dim=1, stable=True)
    documents = documents_BS.gather(1, order_BS)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return order_BS, begins
