"""The attention backends by name, and what can be said of them without torch: what a configuration is checked with."""

import os
from collections.abc import Iterable

from tape_ds.errors import Problem, did_you_mean

ENVIRONMENT = "TAPE_DS_ATTENTION"
"""This environment variable overrides the backend that a model's configuration names."""
NEEDS_CUDA = {
    "flash": True,
    "flex": True,
    "reference": False,
    "sdpa": False,
    "triton": False,
    "varlen": True,
}
"""Every backend, and whether nothing but a CUDA device will do (Triton has an interpreter)."""
NEEDS = {"window": "a sliding window", "softcap": "a soft cap on scores", "sinks": "attention sinks"}
"""Arguments of attention that some families of models need, in words."""
_LACKS = {"flash": ("sinks",), "triton": ("window", "softcap", "sinks"), "varlen": ("softcap", "sinks")}


def available() -> list[str]:
    return sorted(NEEDS_CUDA)


def requested(backend: str) -> str:
    return os.environ.get(ENVIRONMENT) or backend


def check_backend(backend: str, needs: Iterable[str] = ()) -> list[Problem]:
    """Check the names in ``attention_backend`` and in the environment, and that the requested backend computes what of
    :data:`NEEDS` a model needs."""
    found = [
        Problem(field, name, "unknown backend", did_you_mean(name, ["auto", *NEEDS_CUDA]))
        for field, name in (("attention_backend", backend), (ENVIRONMENT, os.environ.get(ENVIRONMENT)))
        if name and name not in ("auto", *NEEDS_CUDA)
    ]
    if reason := cannot(requested(backend), needs):
        found.append(_refused(requested(backend), reason))
    return found


def cannot(backend: str, needs: Iterable[str]) -> str | None:
    lacking = [NEEDS[need] for need in needs if need in _LACKS.get(backend, ())]
    return f"cannot compute {' and '.join(lacking)}" if lacking else None


def missing(backend: str, device_type: str) -> Problem | None:
    """What a machine whose models run on "cpu" or "cuda" lacks for the configured backend, or for the one that the
    environment puts in its place.

    torch is imported only where the answer needs it.
    """
    name = requested(backend)
    if name not in NEEDS_CUDA or name in ("reference", "sdpa"):
        return None
    reason: str | None = "needs a CUDA device"
    if device_type == "cuda" or not NEEDS_CUDA[name]:
        from tape_ds.attention import backends

        reason = backends.missing(name, device_type)
    return None if reason is None else _refused(name, reason)


def _refused(name: str, reason: str) -> Problem:
    field = ENVIRONMENT if os.environ.get(ENVIRONMENT) else "attention_backend"
    return Problem(field, name, reason, "choose auto or sdpa")
