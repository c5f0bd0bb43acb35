"""Attention backends of an exported model: torch's SDPA, or plain matrices on request."""

import functools
from collections.abc import Callable

from torch import Tensor

from tape_ds.attention import requested
from tape_ds.attention.call import AttentionCall, joined
from tape_ds.attention.plain import attention_by_reference
from tape_ds.attention.sdpa import attention_by_sdpa
from tape_ds.errors import did_you_mean

_FUNCTIONS: dict[str, Callable[[AttentionCall], tuple[Tensor, ...]]] = {
    "reference": functools.partial(joined, attention_by_reference),
    "sdpa": attention_by_sdpa,
}


def run(name: str, call: AttentionCall) -> tuple[Tensor, ...]:
    """Return the call's outputs [B, H, T, V], computed by a backend."""
    return _FUNCTIONS[name](call)


def choose(backend: str, call: AttentionCall) -> str:
    """Return the name of the backend that ``backend`` requests; "auto" is ``sdpa``, on any device.

    Raises:
        ValueError: it is unknown.
    """
    name = requested(backend)
    if name == "auto":
        return "sdpa"
    if name not in _FUNCTIONS:
        raise ValueError(f"attention backend {name!r} is unknown; {did_you_mean(name, ['auto', *_FUNCTIONS])}")
    return name


def missing(name: str, device_type: str) -> str | None:
    """Return what a machine lacks for a backend: nothing, for these."""
    return None
