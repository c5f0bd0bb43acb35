"""Scores that grow with the logarithm of how many keys there are, an option of every encoding: ``log_scale``.

A softmax over more keys is flatter. The product of a query that sees n keys with each of them is multiplied by
``max(1, ln n / ln N)`` (Su 2021, kexue.fm/archives/8823, with n the length of the text, and without a bound; Chiang and
Cholak 2022, arXiv:2202.12172, Section 4.3, with ``ln n`` alone). So a model computes what it did up to N keys, and the
factor can be switched on for longer texts without training. N is ``log_scale_from``, by default
``max_position_embeddings``; a run that extends a model sets it to the model's native length.

What n counts is ``log_scale_by``:

- ``keys``: the tokens of the query's document up to itself, without padding. Position ids are not read: shifts, jumps
  (PoSE) and drawn positions change no factor. Attention within groups (LongLoRA's, while it trains) sees fewer keys.
- ``positions``: the position id and one, as in TAPE's published code (``ln(position + 1) / ln(trained length)``,
  without the bound). A window of PoSE then trains the factors of the positions that it shows, although it has few keys;
  in a text from its beginning, both count the same. Where documents are packed, positions continue across them, and so
  do the factors. An encoding that shifts or draws positions itself changes no factor. Refused for encodings that read
  no position ids.

A cache keeps nothing for either.

Shape letters: B batch, T tokens of this call.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tape_ds.encodings.base import TokenContext
from tape_ds.encodings.documents import running_sums


def keys_seen(context: TokenContext, tokens: int, device: torch.device) -> Tensor:
    """Return n for each of the ``tokens`` of a call, int64 [B or 1, T]; undefined for padding."""
    places = torch.arange(tokens, device=device) + context.offset
    if context.documents_BS is None:
        return places[None] + 1
    ones = torch.ones_like(context.documents_BS, dtype=torch.int64)[:, None]
    return running_sums(ones, context.documents_BS)[:, 0].index_select(1, places)


def factors(seen_BT: Tensor, window: int) -> Tensor:
    """Return factors on queries, above 1 from ``window`` keys on; fp32 [B or 1, 1, T, 1], rounded once."""
    return (seen_BT.double().log() / math.log(window)).clamp_min(1.0).float()[:, None, :, None]
