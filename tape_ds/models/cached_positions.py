"""Positions of cached tokens, as extra columns of the first layer's keys.

Later calls need the positions of cached keys: for a bias by distance (ALiBi, T5, FIRE), counts of separators (BiPE), a
base chosen by length (dynamic NTK). Inside the cache they follow it through beams, crops, resets and offloading. Every
integer becomes three base-256 digits, exact in any 16-bit dtype. (TAPE's states are columns of the values.) A cache
that another program filled has neither, and is refused.

Shape letters: B batch, T tokens, S keys, G key/value heads, K head size, V value width, N integers per token, D digits,
C columns.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache

from tape_ds.attention.call import ALIGNED
from tape_ds.encodings.on_device import refuse_above

BASE = 256
DIGITS = 3
LARGEST = BASE**DIGITS - 1


def columns(integers: int) -> int:
    """Return how many columns keep a token's integers: fused kernels refuse a view of keys with rows of any length."""
    return DIGITS * integers + -DIGITS * integers % ALIGNED


def attach(k_BGTK: Tensor, positions_BTN: Tensor) -> Tensor:
    """Append the positions' digits and zeros to the keys: [B, G, T, K + C]."""
    if not torch.compiler.is_compiling():
        refuse_above(
            positions_BTN,
            LARGEST,
            f"a cache keeps positions up to {LARGEST} for this encoding, not {{}}",
        )
    digits = [positions_BTN // BASE**power % BASE for power in range(DIGITS)]
    added = columns(positions_BTN.shape[-1])
    digits_BTD = torch.cat(digits, dim=-1).to(k_BGTK.dtype)
    columns_BTC = F.pad(digits_BTD, (0, added - digits_BTD.shape[-1]))
    return torch.cat((k_BGTK, columns_BTC[:, None].expand(*k_BGTK.shape[:2], -1, -1)), dim=-1)


def extend(cache: Cache, k_BGTK: Tensor, v_BGTV: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
    """Append this call's keys and values to a layer's, and return all of them, [B, G, S, ...] each."""
    layer = cache.layers[layer_idx] if layer_idx < len(cache.layers) else None
    # not quantised
    if layer is not None and layer.is_initialized and layer.keys.dim() == 4:
        require_own(layer.keys, k_BGTK.shape[-1])
        require_own(layer.values, v_BGTV.shape[-1])
    return cache.update(k_BGTK, v_BGTV, layer_idx)


def require_own(cached_BGSC: Tensor, columns: int) -> None:
    """Refuse a cache that another program filled, as prefix tuning does: it has no positions or states."""
    if cached_BGSC.shape[-1] != columns:
        raise ValueError(
            f"the cache has {cached_BGSC.shape[-1]} columns where this encoding keeps {columns}, positions or position "
            "states among them: keys and values from elsewhere (prefix tuning) do not fit; use prompt tuning or LoRA"
        )


def keys_before(cache: Cache | None, layer_idx: int, offset: int | Tensor) -> Tensor | None:
    """Return a layer's cached keys [B, G, S, ...], at a tensor offset its whole buffer; None without any, and for a
    quantised cache."""
    if (
        cache is None
        or layer_idx >= len(cache.layers)
        or not cache.layers[layer_idx].is_initialized
    ):
        return None
    keys = cache.layers[layer_idx].keys
    if keys is None or keys.dim() != 4:
        return None
    if not isinstance(offset, Tensor):
        if offset == 0 or keys.shape[2] < offset:
            return None
        keys = keys[:, :, :offset]
    # another stream brings them back to the device
    if cache.offloading:
        torch.cuda.current_stream(keys.device).wait_stream(cache.prefetch_stream)
    return keys


def recall(
    cache: Cache | None, offset: int | Tensor, integers: int, head_dim: int
) -> Tensor | None:
    """Return the positions int64 [B, S, N] of the tokens in a cache, at a tensor offset of its whole buffer; None
    without any."""
    if cache is None or integers == 0 or not cache.layers or not cache.layers[0].is_initialized:
        return None
    if not isinstance(offset, Tensor) and offset == 0:
        return None
    keys = keys_before(cache, 0, offset)
    added = columns(integers)
    if keys is None:
        raise ValueError(
            f"a {type(cache.layers[0]).__name__} does not keep keys as they are, and this encoding's positions are "
            "among them: use a dynamic or a static cache"
        )
    if keys.shape[-1] < head_dim + added:
        require_own(keys, head_dim + added)
    start = keys.shape[-1] - added
    digits = (
        keys[:, 0, :, start : start + DIGITS * integers]
        .round()
        .long()
        .unflatten(-1, (DIGITS, integers))
    )
    powers = BASE ** torch.arange(DIGITS, device=digits.device)
    return (digits * powers[:, None]).sum(dim=-2)
