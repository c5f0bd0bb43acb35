"""``randpe``: rotary encoding at randomised positions (Ruoss et al. 2023, arXiv:2305.16843).

Position n becomes the n-th of a sorted draw without replacement from a range longer than the text, so that training
meets the distances of longer texts. The published TAPE code draws again in every layer, in evaluation too, and at every
step of cached decoding; here all layers of a forward share one draw, and evaluation has one fixed draw.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tape_ds.encodings import base
from tape_ds.encodings.catalogue import RandpeOptions
from tape_ds.encodings.on_device import Constant, refuse_above
from tape_ds.encodings.options import ModelConfig
from tape_ds.encodings.rope import RopeEncoding


class RandpeEncoding(RopeEncoding):
    translation_invariant = False

    def __init__(self, config: ModelConfig, options: RandpeOptions):
        super().__init__(config, options)
        self.draws = True
        self.window = config.max_position_embeddings
        self.max_range = options.max_range or 2 * self.window
        length = options.evaluation_length or self.window
        generator = np.random.Generator(np.random.PCG64(options.evaluation_seed))
        self.fixed_draw = Constant(np.sort(generator.permutation(self.max_range)[:length]))

    def positions_for(self, positions_BT: Tensor, context: base.TokenContext) -> Tensor:
        """Return the drawn position of each, and for dynamic scaling what RoPE adds."""
        if self.training:
            refuse_above(
                positions_BT,
                self.window - 1,
                f"randpe draws {self.window} positions (max_position_embeddings) in training, and a text has position "
                "{}: train on shorter sequences, or raise max_position_embeddings",
            )
            drawn = torch.randperm(self.max_range, device="cpu")[: self.window].sort().values
            draw = drawn.to(positions_BT.device)
        else:
            draw = self.fixed_draw.on(positions_BT.device)
        inside_BT = draw[positions_BT.clamp(max=len(draw) - 1)]
        beyond_BT = self.max_range + positions_BT - len(draw)
        return super().positions_for(
            torch.where(positions_BT < len(draw), inside_BT, beyond_BT), context
        )
