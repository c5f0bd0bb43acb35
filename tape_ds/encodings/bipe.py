"""``bipe_rope`` and ``bipe_alibi``: bilevel positional encoding (He et al. 2024, arXiv:2401.16421).

Separators (full stops and line ends) cut a text into segments. A token's place within its segment is a learned
embedding, added to the token's; the number of its segment goes through RoPE or ALiBi. Both follow from the tokens:
position ids are not read, so skipped positions (PoSE) mean nothing here.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tape_ds.encodings import base, documents
from tape_ds.encodings.alibi import AlibiLayer
from tape_ds.encodings.catalogue import BipeOptions
from tape_ds.encodings.on_device import Constant
from tape_ds.encodings.options import ModelConfig
from tape_ds.encodings.rope import RopeEncoding


class BipeRopeEncoding(RopeEncoding):
    """Angles of the segments' numbers.

    A place is three integers: the segment's number, the place within it, and whether the token ends it.
    """

    remembers = 3

    def __init__(self, config: ModelConfig, options: BipeOptions):
        super().__init__(config, options)
        self.separators = Constant(np.array(options.separators or (), np.int64))
        self.intra = base.PlaceTable(options.segment_length, config.hidden_size)

    def positions_for(self, positions_BT: Tensor, context: base.TokenContext) -> Tensor:
        """Segments are counted within each document, through the cache."""
        if context.ids_BT is None:
            raise ValueError(
                "bilevel positions follow from the tokens: give input_ids, not inputs_embeds"
            )
        ends_BT1 = torch.isin(context.ids_BT, self.separators.on(context.ids_BT.device)).long()[
            ..., None
        ]
        unknown_BT2 = ends_BT1.new_zeros(*ends_BT1.shape[:2], 2)
        ends_BS = context.whole(torch.cat((unknown_BT2, ends_BT1), dim=-1))[..., 2]
        documents_BS = (
            torch.zeros_like(ends_BS)
            if context.documents_BS is None
            else context.documents_BS.long()
        )
        segment_BS, intra_BS = count_segments(ends_BS, documents_BS[:, : ends_BS.shape[1]])
        return context.of_this_call(
            torch.stack((segment_BS, intra_BS, ends_BS), dim=-1), context.ids_BT.shape[1]
        )

    def embed(self, x_BTD: Tensor, positions_BTN: Tensor) -> Tensor:
        return x_BTD + self.intra(positions_BTN[..., 1]).to(x_BTD.dtype)


class BipeAlibiEncoding(BipeRopeEncoding):
    def start(self, positions_BTN: Tensor) -> None:
        return None


class BipeAlibiLayer(AlibiLayer):
    """ALiBi over segments, with the paper's slopes: 96 times as steep."""

    steepness = 96.0


def count_segments(ends_BS: Tensor, documents_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Number of each token's segment within its document, and its place in that segment; both [B, S]."""
    order_BS, begins_document = documents.together(documents_BS)
    ends = ends_BS.gather(1, order_BS)
    places = torch.arange(ends.shape[1], device=ends.device).expand_as(ends)
    begins_segment = begins_document.clone()
    begins_segment[:, 1:] |= ends[:, :-1] == 1
    before = ends.cumsum(1) - ends
    segment = before - before.masked_fill(~begins_document, 0).cummax(1).values
    intra = places - places.masked_fill(~begins_segment, 0).cummax(1).values
    back_BS = order_BS.argsort(dim=1)
    return segment.gather(1, back_BS), intra.gather(1, back_BS)
