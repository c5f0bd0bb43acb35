"""Attention backends of an exported model: torch's SDPA, or plain matrices on request."""

from torch import Tensor

from tape_ds.attention import requested
from tape_ds.attention.call import AttentionCall, joined
from tape_ds.attention.plain import attention_by_reference
from tape_ds.attention.sdpa import attention_by_sdpa
from tape_ds.errors import did_you_mean


def run(name: str, call: AttentionCall) -> tuple[Tensor, ...]:
    """Return the call's outputs [B, H, T, V], computed by a backend."""
    if name == "sdpa":
        return attention_by_sdpa(call)
    return joined(attention_by_reference, call)


def choose(backend: str, call: AttentionCall) -> str:
    """Return the name of the backend that ``backend`` requests; "auto" is ``sdpa``, on any device.

    Raises:
        ValueError: it is unknown.
    """
    name = requested(backend)
    if name not in ("auto", "sdpa", "reference"):
        raise ValueError(
            f"attention backend {name!r} is unknown; {did_you_mean(name, ['auto', 'reference', 'sdpa'])}"
        )
    if name == "auto":
        return "sdpa"
    return name


def missing(name: str, device_type: str) -> str | None:
    """Return what a machine lacks for a backend: nothing, for these."""
    return None
