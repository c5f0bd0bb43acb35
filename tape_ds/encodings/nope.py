"""``nope``: no positional encoding; order is known from the causal mask alone (Kazemnejad et al. 2023,
arXiv:2305.19466). On texts longer than those of training its scores may be scaled up (DroPE)."""

from __future__ import annotations

import math

from torch import Tensor

from tape_ds.encodings import base
from tape_ds.encodings.catalogue import NopeOptions
from tape_ds.encodings.options import ModelConfig


class NopeLayer(base.PositionLayer):
    def __init__(self, config: ModelConfig, options: NopeOptions, layer_idx: int):
        super().__init__()
        trained = options.trained_length or config.max_position_embeddings
        length = options.text_length or trained
        self.factor = 1.0
        if options.score_scale is not None and length > trained:
            self.factor += options.score_scale * math.log(length / trained)

    def rotate(
        self, q_BHTK: Tensor, k_BGTK: Tensor, start: None, state: None, observed: None = None
    ) -> tuple[Tensor, Tensor]:
        """Scale the queries, which scales the scores: cached keys serve any factor."""
        return (q_BHTK if self.factor == 1 else q_BHTK * self.factor), k_BGTK
