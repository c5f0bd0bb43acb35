"""``prope``: RoPE whose lowest frequencies do not turn (p-RoPE, Barbero et al. 2024, arXiv:2410.06205).

Channels that turn least carry content, and over a long text they turn enough to lose it. Here they do not turn at all.
"""

from __future__ import annotations

from tape_ds.encodings.catalogue import PropeOptions
from tape_ds.encodings.options import ModelConfig
from tape_ds.encodings.rope import RopeEncoding


class PropeEncoding(RopeEncoding):
    def __init__(self, config: ModelConfig, options: PropeOptions):
        super().__init__(config, options)
        self.frequencies.array[options.kept(self.head_dim) :] = 0.0  # after scaling; the highest stand first
