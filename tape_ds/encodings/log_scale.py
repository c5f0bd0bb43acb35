"""Scores that grow with the logarithm of how many keys there are, an option of every encoding: ``log_scale``.

A softmax over more keys is flatter. The product of a query that sees n keys with each of them is multiplied by
``max(1, ln n / ln N)``, N being ``max_position_embeddings`` (Su 2021, kexue.fm/archives/8823, with n the length of the
text, and without a bound; Chiang and Cholak 2022, arXiv:2202.12172, Section 4.3, with ``ln n`` alone). So a model
computes what it did up to N keys, and the factor can be switched on for longer texts without training.

n counts the tokens of the query's document up to itself, without padding. Position ids are not read: shifts, jumps
(PoSE) and drawn positions change no factor, and a cache keeps nothing for it. Attention within groups (LongLoRA's,
while it trains) sees fewer keys than n.

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
