"""Abacus embeddings (McLeish et al. 2024, arXiv:2405.17399, Section 3), an option of every encoding: ``abacus: true``.

A digit's place within its number, 1, 2, 3, ... from the first as written, is a learned embedding that is added to the
token's. Where numbers are written with the least significant digit first, digits that have to be added up look alike.
In training a common offset is drawn for all places of a forward, so that places of longer numbers are trained too;
evaluation counts from 1. The paper's code gives every other token row 0 of its table; here they get nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tape_ds.encodings import base, documents
from tape_ds.encodings.on_device import Constant
from tape_ds.encodings.options import ModelConfig, Options


class AbacusEncoding(base.PositionEncoding):
    """Any encoding, plus the embeddings of digits' places.

    A token's integers are those of the inner encoding, then its place within its number, 0 for other tokens. A cache
    keeps both: counting continues in a number that is being generated.
    """

    def __init__(self, config: ModelConfig, options: Options, inner: base.PositionEncoding):
        super().__init__(config, options)
        self.inner = inner
        self.digits = base.PlaceTable(options.abacus_places, config.hidden_size)
        self.digit_ids = Constant(np.array(options.abacus_digits or (), np.int64))
        self.shift = options.abacus_shift
        self.draws = self.shift > 0 or inner.draws
        self.translation_invariant = inner.translation_invariant
        self.cache_exact = inner.cache_exact
        self.remembers = max(inner.remembers, 1) + 1
        self._alike: bool | None = None
        """Whether the inner places of this forward are the same in all sequences; None: they have to be compared."""

    def positions_for(self, positions_BT: Tensor, context: base.TokenContext) -> Tensor:
        """Return the inner encoding's places, followed by those within numbers."""
        if context.ids_BT is None:
            raise ValueError(
                "places within numbers follow from the tokens: give input_ids, not inputs_embeds"
            )
        past_BSN = None
        if context.past_BSN is not None and self.inner.remembers:
            past_BSN = context.past_BSN[..., :-1]
        inner_BTN = self.inner.positions_for(positions_BT, context._replace(past_BSN=past_BSN))
        if not torch.compiler.is_compiling():
            self._alike = len(inner_BTN) == 1 if context.past_BSN is None else None
        digits_BT = torch.isin(context.ids_BT, self.digit_ids.on(context.ids_BT.device))
        # for tokens in the cache only the last integer is read: 0 where there was no digit
        unknown_BTN = digits_BT[..., None].long().expand(-1, -1, inner_BTN.shape[-1] + 1)
        digits_BS = context.whole(unknown_BTN)[..., -1] > 0
        documents_BS = None
        if context.documents_BS is not None:
            documents_BS = context.documents_BS[:, : digits_BS.shape[1]].long()
        places_BT1 = context.of_this_call(
            places_in_numbers(digits_BS, documents_BS)[..., None], digits_BT.shape[1]
        )
        batch = max(len(inner_BTN), len(places_BT1))
        return torch.cat(
            (inner_BTN.expand(batch, -1, -1), places_BT1.expand(batch, -1, -1)), dim=-1
        )

    def embed(self, x_BTD: Tensor, positions_BTN: Tensor) -> Tensor:
        """Return what the inner encoding makes of the embeddings, plus those of digits' places.

        The offset is drawn here, not where places are counted: what a cache keeps is the count.
        """
        x_BTD = self.inner.embed(x_BTD, self._inner_places(positions_BTN))
        positions_BT = positions_BTN[..., -1]
        offset = 0
        if self.training and self.shift:
            offset = int(torch.randint(self.shift + 1, (), device="cpu").item())
        added_BTD = self.digits((positions_BT - 1).clamp(min=0) + offset)
        return x_BTD + added_BTD.masked_fill((positions_BT == 0)[..., None], 0).to(x_BTD.dtype)

    def start(self, positions_BTN: Tensor) -> Tensor | None:
        return self.inner.start(self._inner_places(positions_BTN))

    def for_layers(self, positions_BTN: Tensor) -> Tensor | None:
        return self.inner.for_layers(self._inner_places(positions_BTN))

    def _inner_places(self, positions_BTN: Tensor) -> Tensor:
        """Return them once for the batch where sequences differ in their numbers only: angles and biases are then
        computed once too."""
        inner_BTN = positions_BTN[..., :-1]
        if self._alike is None or torch.compiler.is_compiling():
            return base.dedupe_positions(inner_BTN)
        if self._alike:
            return inner_BTN[:1]
        return inner_BTN


def places_in_numbers(digits_BS: Tensor, documents_BS: Tensor | None) -> Tensor:
    """Place of each digit within its number, from 1; 0 for other tokens; int64 [B, S]. Documents may be interleaved,
    and numbers do not run on from one into another."""
    order_BS = None
    begins = torch.zeros_like(digits_BS)
    if documents_BS is not None:
        order_BS, begins = documents.together(documents_BS)
        digits_BS = digits_BS.gather(1, order_BS)
    counted = torch.arange(1, digits_BS.shape[1] + 1, device=digits_BS.device).expand(
        digits_BS.shape
    )
    # a number counts from the last token that is none of its digits
    before = torch.where(begins, counted - 1, 0)
    places = counted - torch.where(digits_BS, before, counted).cummax(1).values
    if order_BS is None:
        return places
    return places.gather(1, order_BS.argsort(dim=1))
