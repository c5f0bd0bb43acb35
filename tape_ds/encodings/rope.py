"""``rope``: rotary position embedding (Su et al. 2021, arXiv:2104.09864), with any RoPE scaling.

``yarn`` is the same with ``rope_type: yarn`` (Peng et al. 2023, arXiv:2309.00071). ``prope`` leaves the lowest
frequencies out (p-RoPE, Barbero et al. 2024, arXiv:2410.06205): channels that turn least carry content, and over a
long text they turn enough to lose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tape_ds.encodings import base, scaling
from tape_ds.encodings.on_device import Constant
from tape_ds.encodings.options import ModelConfig, Options
from tape_ds.kernels.rotate import rotate


class Frequencies(Constant):
    """Angular frequencies of ``rope_parameters`` (static ones), fp64 [K / 2], and the factor on cosine and sine."""

    def __init__(self, parameters: Mapping[str, Any], head_size: int):
        array, self.factor = scaling.frequencies(parameters, head_size)
        super().__init__(array)


class RopeEncoding(base.PositionEncoding):
    """Cosines and sines of the places' angles: the start of ``tape`` too.

    With ``rope_type: dynamic`` the base of the frequencies follows from the length of the text. It is fixed for each
    sequence by the call that begins it (in generation: the prompt), remembered with the tokens in the cache, and never
    kept here. So it neither is invariant under shifts nor gives the full pass's logits beyond the original window.
    """

    def __init__(self, config: ModelConfig, options: Options):
        super().__init__(config, options)
        self.rope_parameters = dict(config.rope_parameters)
        self.dynamic = scaling.is_dynamic(self.rope_parameters)
        self.head_dim = config.head_dim
        if self.dynamic:
            self.translation_invariant = False
            self.cache_exact = False
            self.remembers = 2
        else:
            self.frequencies = Frequencies(self.rope_parameters, self.head_dim)

    def positions_for(self, positions_BT: Tensor, context: base.TokenContext) -> Tensor:
        """Return the positions, and for dynamic scaling the length that decides each sequence's base."""
        places_BT1 = self.shifted(positions_BT)[..., None]
        if not self.dynamic:
            return places_BT1
        # of the sequences that this call begins: one more than their last position that is no padding
        ends_BT1 = places_BT1
        if context.documents_BS is not None:
            documents_BT = context.documents_BS[:, : places_BT1.shape[1]]
            ends_BT1 = places_BT1.expand(len(documents_BT), -1, -1).masked_fill(
                documents_BT[..., None] < 0, 0
            )
        length_B11 = ends_BT1.amax(dim=1, keepdim=True) + 1
        # at a tensor offset the cache may still be empty, its lengths 0
        if context.past_BSN is not None:
            kept_B11 = context.past_BSN[:, :1, 1:]
            length_B11 = torch.where(kept_B11 > 0, kept_B11, length_B11)
        batch = max(len(places_BT1), len(length_B11))
        length_BT1 = length_B11.expand(batch, places_BT1.shape[1], 1)
        return torch.cat((places_BT1.expand(batch, -1, -1), length_BT1), dim=-1)

    def start(self, positions_BTN: Tensor) -> Tensor:
        """fp32 [B, 1, T, K]: cosines in the first K/2 columns, sines in the last; angles in fp64, rounded once."""
        if self.dynamic:
            frequencies = dynamic_frequencies(
                self.rope_parameters, self.head_dim, positions_BTN[..., 1]
            )
            factor = 1.0
        else:
            frequencies = self.frequencies.on(positions_BTN.device)
            factor = self.frequencies.factor
        angles_BTC = positions_BTN[..., :1].double() * frequencies
        return (torch.cat((angles_BTC.cos(), angles_BTC.sin()), dim=-1) * factor).float()[:, None]


class PropeEncoding(RopeEncoding):
    def __init__(self, config: ModelConfig, options: Any):
        super().__init__(config, options)
        # after scaling; the highest come first
        self.frequencies.array[options.kept(self.head_dim) :] = 0.0


def dynamic_frequencies(parameters: Mapping[str, Any], head_size: int, length: Tensor) -> Tensor:
    """Dynamic NTK: fp64 [..., head_size / 2] for texts of ``length`` [...] tokens.

    Beyond the original window the base is that of static NTK with the factor ``s length / window - (s - 1)``.
    """
    factor = parameters["factor"]
    window = parameters["original_max_position_embeddings"]
    stretch = (factor * length.double() / window - (factor - 1)).clamp_min(1.0)
    base = float(parameters["rope_theta"]) * stretch ** (head_size / (head_size - 2))
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64, device=length.device) / head_size
    return base[..., None] ** -exponents


class RopeLayer(base.PositionLayer):
    def rotate(
        self, q_BHTK: Tensor, k_BGTK: Tensor, start: Tensor, state: None, observed: None = None
    ) -> tuple[Tensor, Tensor]:
        return rotate(q_BHTK, start), rotate(k_BGTK, start)
