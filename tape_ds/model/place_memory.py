"""What a cache keeps of its tokens' places: integers, as extra columns of the first layer's keys.

A later call needs to know where the cached keys stand: their distance is a bias (ALiBi, T5, FIRE), their separators
count segments (BiPE), their length decided a base (dynamic NTK). Kept inside the cache they follow it through beams,
crops, resets and offloading. Every integer becomes three base-256 digits, which any 16-bit dtype holds exactly.

Shape letters: B batch, T tokens, S keys, G key/value heads, K head size, N integers per token.
"""

import torch
from torch import Tensor
from transformers.cache_utils import Cache

BASE = 256
DIGITS = 3
LARGEST = BASE**DIGITS - 1


def attach(k_BGTK: Tensor, places_BTN: Tensor) -> Tensor:
    """The keys with the places' digits behind them: [B, G, T, K + 3 N].

    Raises:
        ValueError: a place that three digits cannot hold (not looked for inside a compiled graph).
    """
    if not torch.compiler.is_compiling() and bool((places_BTN > LARGEST).any()):
        raise ValueError(f"a cache keeps places up to {LARGEST} for this encoding, not {int(places_BTN.max())}")
    digits = [places_BTN // BASE**power % BASE for power in range(DIGITS)]
    columns_BT = torch.cat(digits, dim=-1).to(k_BGTK.dtype)
    return torch.cat((k_BGTK, columns_BT[:, None].expand(*k_BGTK.shape[:2], -1, -1)), dim=-1)


def recall(cache: Cache | None, offset: int | Tensor, integers: int, head_dim: int) -> Tensor | None:
    """The places int64 [B, S, N] of the tokens in a cache; of its whole buffer at a tensor offset.

    Returns None where there is nothing to recall.

    Raises:
        ValueError: a cache that does not keep its first keys as they were given.
    """
    if cache is None or integers == 0 or not cache.layers or not cache.layers[0].is_initialized:
        return None
    keys = cache.layers[0].keys
    if isinstance(offset, int):
        if offset == 0:
            return None
        if keys is None or keys.dim() != 4 or keys.shape[2] < offset:
            raise ValueError(
                f"a {type(cache.layers[0]).__name__} does not keep keys as they are, and this encoding's places are "
                "among them: use a dynamic or a static cache"
            )
        keys = keys[:, :, :offset]
    if cache.offloading:  # they are on their way back to the device, on a stream of their own
        torch.cuda.current_stream(keys.device).wait_stream(cache.prefetch_stream)
    digits = keys[:, 0, :, head_dim:].round().long().unflatten(-1, (DIGITS, integers))
    powers = BASE ** torch.arange(DIGITS, device=digits.device)
    return (digits * powers[:, None]).sum(dim=-2)
