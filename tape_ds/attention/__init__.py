"""The attention backends by name: what a configuration is checked with, without torch.

One attention serves every positional encoding: :func:`tape_ds.attention.attend.attend`.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

from tape_ds.errors import Problem, did_you_mean

ENVIRONMENT = "TAPE_DS_ATTENTION"
"""This environment variable overrides the backend that a model's configuration names."""
NEEDS = {
    "bias": "a bias on scores",
    "window": "a sliding window",
    "softcap": "a soft cap on scores",
    "sinks": "attention sinks",
}
"""Arguments of attention that some models need, in words."""


class Backend(NamedTuple):
    needs_cuda: bool = False
    """Whether it runs on a CUDA device alone (Triton has an interpreter)."""
    lacks: tuple[str, ...] = ()
    """Names of :data:`NEEDS` that it cannot compute."""


BACKENDS = {
    "flash": Backend(needs_cuda=True, lacks=("bias", "sinks")),
    "flex": Backend(needs_cuda=True),
    "reference": Backend(),
    "sdpa": Backend(),
    "triton": Backend(lacks=("bias", "window", "softcap", "sinks")),
    "varlen": Backend(needs_cuda=True, lacks=("bias", "softcap", "sinks")),
}


def available() -> list[str]:
    return sorted(BACKENDS)


def requested(backend: str) -> str:
    return os.environ.get(ENVIRONMENT) or backend


def check_backend(backend: str, needs: Iterable[str] = ()) -> list[Problem]:
    """Check the names in ``attention_backend`` and in the environment, and that the requested backend computes those of
    :data:`NEEDS` that a model needs."""
    found = [
        Problem(field, name, "unknown backend", did_you_mean(name, ["auto", *BACKENDS]))
        for field, name in (
            ("attention_backend", backend),
            (ENVIRONMENT, os.environ.get(ENVIRONMENT)),
        )
        if name and name not in ("auto", *BACKENDS)
    ]
    if reason := cannot(requested(backend), needs):
        found.append(_refused(requested(backend), reason))
    return found


def cannot(backend: str, needs: Iterable[str]) -> str | None:
    lacking = [NEEDS[need] for need in needs if need in BACKENDS.get(backend, Backend()).lacks]
    if lacking:
        return f"cannot compute {' and '.join(lacking)}"
    return None


def missing(backend: str, device_type: str) -> Problem | None:
    """Return what the requested backend lacks on a machine whose models run on "cpu" or "cuda"."""
    name = requested(backend)
    if name not in BACKENDS or name in ("reference", "sdpa"):
        return None
    reason: str | None = "needs a CUDA device"
    if device_type == "cuda" or not BACKENDS[name].needs_cuda:
        # imports torch, where the answer needs it
        from tape_ds.attention import backends

        reason = backends.missing(name, device_type)
    if reason is None:
        return None
    return _refused(name, reason)


def _refused(name: str, reason: str) -> Problem:
    field = ENVIRONMENT if os.environ.get(ENVIRONMENT) else "attention_backend"
    return Problem(field, name, reason, "choose auto or sdpa")
