"""Attention by the package flash-attn, version 2, 3 or 4, where it is installed: one call per K columns of the value.

Its kernels want one width for q, k and v, so the scores of a wide value are computed more than once. Documents go
through its varlen functions.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, P tokens of all documents,
without padding.
"""

import functools
import importlib
import importlib.util
import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape_ds.attention.call import AttentionCall
from tape_ds.attention.document_layout import PackedLayout
from tape_ds.attention.documents import attention_by_documents, by_key_width
from tape_ds.attention.documents import why_not as why_not_documents

logger = logging.getLogger(__name__)


class Release(NamedTuple):
    """One of Dao's packages."""

    name: str
    module: str
    """With ``flash_attn_func`` and ``flash_attn_varlen_func``."""
    distribution: str | None
    """What must be installed for the module to be this release; None: the module's name says enough."""
    capabilities: tuple[int, ...]
    """Major compute capabilities whose forward and backward it has."""
    windows_and_caps: bool
    """Whether its backward is known to follow ``window_size`` and ``softcap``, as its forward does."""


# The fastest of a chip first. Version 2.8.3 carries a folder flash_attn/cute without the backward of packed sequences:
# the module alone does not make a version 4.
RELEASES = (
    Release("flash-attn 3", "flash_attn_interface", None, (9,), True),
    Release("flash-attn 4", "flash_attn.cute", "flash-attn-4", (9, 10, 11, 12), False),
    Release("flash-attn 2", "flash_attn", "flash-attn", (8, 9, 10, 12), True),
)


def attention_by_flash(call: AttentionCall) -> tuple[Tensor, ...]:
    options: dict[str, Any] = {"softmax_scale": call.scale, "causal": True}
    if call.window is not None:
        options["window_size"] = (call.window - 1, 0)
    if call.softcap is not None:
        options["softcap"] = call.softcap
    if call.layout is None:
        q_BTHK, k_BSGK = call.q.transpose(1, 2), call.k.transpose(1, 2)

        def dense(part_BSGK: Tensor) -> Tensor:
            return _output(flash_functions().dense(q_BTHK, k_BSGK, part_BSGK, **options))

        width = call.q.shape[-1]
        return tuple(by_key_width(dense, value.transpose(1, 2), width).transpose(1, 2) for value in call.values)

    def packed_attention(q_PHK: Tensor, k_PGK: Tensor, v_PGV: Tensor, packed: PackedLayout) -> Tensor:
        lengths = {
            "cu_seqlens_q": packed.cu_queries,
            "cu_seqlens_k": packed.cu_keys,
            "max_seqlen_q": packed.longest_queries,
            "max_seqlen_k": packed.longest_keys,
        }
        return _output(flash_functions().varlen(q_PHK, k_PGK, v_PGV, **lengths, **options))

    return attention_by_documents(call, call.layout.packed, packed_attention, one_width=True)


def why_not(call: AttentionCall) -> str | None:
    release = flash_functions().release if call.needs else None
    if release is not None and not release.windows_and_caps:
        return f"has no window and no soft cap in {release.name}, whose first versions left them out of the gradients"
    return why_not_documents(call)


def _output(answer: Any) -> Tensor:
    """Versions 3 and 4 may return the log-sum-exp too."""
    out: Tensor = answer[0] if isinstance(answer, tuple) else answer
    return out


class Functions(NamedTuple):
    """The two functions of a flash-attn version that are used here; both also take ``window_size`` and ``softcap``."""

    dense: Any
    """(q [B, T, H, K], k, v, *, softmax_scale, causal)."""
    varlen: Any
    """(q [P, H, K], k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal)."""
    release: Release


@functools.cache
def flash_functions() -> Functions:
    """Return those of the fastest installed release for this GPU; one that is broken is left out with a warning."""
    capability = torch.cuda.get_device_capability()[0]
    for release in RELEASES:
        if capability not in release.capabilities or not installed(release):
            continue
        try:
            module = importlib.import_module(release.module)
            return Functions(module.flash_attn_func, module.flash_attn_varlen_func, release)
        except (ImportError, AttributeError) as error:  # built for another torch; another package of that name
            logger.warning("attention: %s is installed and cannot be used: %s", release.module, error)
    raise ModuleNotFoundError(
        f"no flash-attn for compute capability {capability} is installed: pip install --no-build-isolation flash-attn"
    )


def missing() -> str | None:
    try:
        flash_functions()
    except ModuleNotFoundError:
        return "needs the package flash-attn, in a version for this GPU"
    return None


def installed(release: Release) -> bool:
    """Return whether the package is installed, not another one with a module of that name."""
    name = release.distribution
    try:
        return importlib.util.find_spec(release.module) is not None and (name is None or bool(version(name)))
    except (ModuleNotFoundError, PackageNotFoundError):  # the first: of the package that the module would be in
        return False
