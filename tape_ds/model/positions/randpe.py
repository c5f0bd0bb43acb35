"""``randpe``: rotary encoding at randomised positions (Ruoss et al. 2023, arXiv:2305.16843).

Position n becomes the n-th of a sorted draw without replacement from a range longer than the text, so that training
meets the distances of longer texts. The published TAPE code draws anew in every layer, in evaluation too, and at every
step of cached decoding; here all layers of a forward share one draw, and evaluation has one fixed draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tape_ds.errors import Problem
from tape_ds.model.positions import base
from tape_ds.model.positions.rope import RopeEncoding

if TYPE_CHECKING:
    from tape_ds.model.configuration import TapeConfig


@dataclass(frozen=True)
class RandpeOptions(base.Options):
    """How far and how densely positions are drawn."""

    max_range: int | None = None
    """Positions are drawn from 0 .. max_range - 1; None: twice ``max_position_embeddings``, as published."""
    evaluation_length: int | None = None
    """Tokens over which evaluation spreads the range; None: ``max_position_embeddings``, the density of training.
    ``max_range`` itself makes evaluation count 0, 1, 2, ... Tokens beyond it count on from ``max_range`` in steps of
    1, which training has never seen."""
    evaluation_seed: int = 0
    """Decides the fixed draw of evaluation."""

    def problems(self) -> list[Problem]:
        """Positions that are drawn need no random offset, which would only push them out of the window."""
        problems = super().problems()
        if self.random_shift:
            wrong = "positions are drawn at random already"
            problems.append(Problem("position_options.random_shift", self.random_shift, wrong, "remove it"))
        return problems

    def problems_with(self, config: TapeConfig) -> list[Problem]:
        """A draw cannot be larger than its range."""
        whole = self.max_range if self.max_range is not None else 2 * config.max_position_embeddings
        problems = []
        if whole < config.max_position_embeddings:
            wrong = f"shorter than max_position_embeddings = {config.max_position_embeddings}"
            problems.append(Problem("position_options.max_range", whole, wrong, "give that or more"))
        length = self.evaluation_length
        if length is not None and not 1 <= length <= whole:
            wrong = f"not between 1 and max_range = {whole}"
            problems.append(Problem("position_options.evaluation_length", length, wrong, "choose one of these"))
        if self.evaluation_seed < 0:
            wrong = "negative"
            problems.append(Problem("position_options.evaluation_seed", self.evaluation_seed, wrong, "give 0 or more"))
        return problems


class RandpeEncoding(RopeEncoding):
    """RoPE's cosines and sines at drawn positions."""

    translation_invariant = False
    draws = True

    def __init__(self, config: TapeConfig, options: RandpeOptions):
        super().__init__(config, options)
        self.window = config.max_position_embeddings
        self.max_range = options.max_range or 2 * self.window
        length = options.evaluation_length or self.window
        generator = np.random.Generator(np.random.PCG64(options.evaluation_seed))
        self.fixed_draw = np.sort(generator.permutation(self.max_range)[:length])

    def locate(self, positions_BT: Tensor, text: base.Text) -> Tensor:
        """The drawn position of each, and for dynamic scaling what RoPE adds.

        Raises:
            ValueError: a position beyond ``max_position_embeddings`` in training.
        """
        if self.training:
            last = int(positions_BT.max())
            if last >= self.window:
                raise ValueError(
                    f"randpe draws {self.window} positions (max_position_embeddings) in training, and position {last} "
                    "is asked for: train on shorter rows, or raise max_position_embeddings"
                )
            draw = torch.randperm(self.max_range, device="cpu")[: self.window].sort().values
        else:
            draw = torch.from_numpy(self.fixed_draw)
        draw = draw.to(positions_BT.device)
        inside_BT = draw[positions_BT.clamp(max=len(draw) - 1)]
        beyond_BT = self.max_range + positions_BT - len(draw)
        return super().locate(torch.where(positions_BT < len(draw), inside_BT, beyond_BT), text)
