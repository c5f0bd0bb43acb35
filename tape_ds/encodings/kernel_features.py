"""Features whose inner product is ALiBi's bias: where ``tape`` starts from ALiBi instead of RoPE.

The aim is a state e with ``ln(e_n . e_m) = -slope |n - m|``, so that the updates of TAPE act on ALiBi as they act on
RoPE, by a random binning (Rahimi and Recht 2007, Section 4). The published code (``adalibi``) returns NaN.

- C columns are C / 4 grids of 4 buckets. Each grid has a width drawn from Gamma(2, 1) / slope and an offset; two tokens
  meet in a grid with probability ``exp(-slope |n - m|)``, averaged over draws. Bins beyond 4 share buckets by a hash,
  with a random sign each, so that chance meetings of distant tokens cancel on average.
- The logarithm takes ``max(e_n . e_m, FLOOR)``: no score is infinite. Below the floor the gradient is 0.
- Training draws the grids in every forward (torch's CPU generator), evaluation has one fixed draw, so a token's state
  depends on its position alone, and cached decoding equals the full pass. Invariance under shifts holds only on average
  over draws, and is not promised.
"""

import torch
from torch import Tensor

from tape_ds.encodings.catalogue import BUCKETS
from tape_ds.kernels.reference import upcast

FLOOR = 1e-3
EVALUATION_SEED = 0
_PRIMES = (2_654_435_761, 40_503, 2**31 - 1)


def draw_grids(columns: int, training: bool) -> Tensor:
    """fp64 [3, P], P = columns / 4 grids: width for a slope of 1, offset in widths, and a salt for the hash."""
    generator = None
    if not training:
        generator = torch.Generator().manual_seed(EVALUATION_SEED)
    count = columns // BUCKETS
    uniform = torch.rand(4, count, dtype=torch.float64, generator=generator, device="cpu").clamp(
        1e-12, 1 - 1e-12
    )
    # the sum of two exponentials is Gamma(2, 1)
    width = -(uniform[0].log() + uniform[1].log())
    return torch.stack((width, uniform[2], (uniform[3] * 2**20).floor()))


def features(positions_BT: Tensor, slopes_G: Tensor, grids_3P: Tensor) -> Tensor:
    """fp32 [B, G, T, C]: one entry of +-1/sqrt(P) in each grid's four columns."""
    width_P, offset_P, salt_P = grids_3P.to(positions_BT.device)
    places_BGTP = (
        positions_BT.double()[:, None, :, None] * slopes_G.double()[:, None, None] / width_P
        + offset_P
    )
    hashed = (places_BGTP.floor().long() * _PRIMES[0] + salt_P.long() * _PRIMES[1]) % _PRIMES[2]
    hashed = (hashed * (hashed % 1_021 + 1)) % _PRIMES[2]
    bucket = hashed % BUCKETS
    sign = 1 - 2 * (hashed // BUCKETS % 2)
    one_hot = torch.nn.functional.one_hot(bucket, BUCKETS) * sign[..., None]
    return (one_hot.float() * len(width_P) ** -0.5).flatten(-2)


def log_kernel(query_marks: Tensor, key_marks: Tensor) -> Tensor:
    """``ln max(e_n . e_m, FLOOR)`` [B, H, t, s], at least in fp32, from marks [B, H, t, C] and [B, G, s, C]; query head
    h reads head h // (H / G)."""
    groups = key_marks.shape[1]
    queries = upcast(query_marks).unflatten(1, (groups, -1)).flatten(2, 3)
    products = queries @ upcast(key_marks).transpose(-1, -2)
    return products.unflatten(2, (-1, query_marks.shape[2])).flatten(1, 2).clamp_min(FLOOR).log()
