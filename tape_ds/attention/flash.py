"""FlashAttention over the tokens of all documents, one call per K columns of the value, however many documents.

The backend ``varlen`` is torch's own (``torch.nn.attention.varlen``); ``flash`` is the package flash-attn, version 2, 3
or 4, where it is installed. Both take one width for q, k and v: the scores of a wide value are computed more than once.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, P tokens of all documents,
without padding.
"""

import functools
import importlib
import importlib.util
import inspect
import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn.attention.varlen import varlen_attn

from tape_ds.attention.call import ALIGNED, AttentionCall, has_flash
from tape_ds.attention.document_layout import PackedLayout
from tape_ds.attention.documents import attention_by_documents, by_key_width, why_not

logger = logging.getLogger(__name__)

# Later versions than torch 2.11 need an argument for grouped heads.
_ASKS_FOR_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
_WIDEST = 256
"""Columns of a head that torch's kernels take."""


def attention_by_varlen(call: AttentionCall) -> tuple[Tensor, ...]:
    """Compute a call that :func:`why_not_varlen` does not refuse; a sequence without a layout is one document."""
    if call.layout is None:
        (sequences, _, queries, _), keys = call.q.shape, call.k.shape[2]
        counted = torch.arange(sequences + 1, device=call.q.device, dtype=torch.int32)
        packed = PackedLayout(counted * queries, counted * keys, queries, keys, None, None)
    else:
        packed = call.layout.packed
    if call.q.is_cuda and not torch.compiler.is_compiling():
        use_flash_attention_3()

    def attention(q_PHK: Tensor, k_PGK: Tensor, v_PGV: Tensor) -> Tensor:
        grouped: dict[str, Any] = (
            {"enable_gqa": q_PHK.shape[1] != k_PGK.shape[1]} if _ASKS_FOR_GROUPS else {}
        )
        lengths = packed.cu_queries, packed.cu_keys, packed.longest_queries, packed.longest_keys
        window = (-1 if call.window is None else call.window - 1, 0)
        out_PHK = varlen_attn(
            q_PHK, k_PGK, v_PGV, *lengths, scale=call.scale, window_size=window, **grouped
        )
        assert isinstance(out_PHK, Tensor)  # no log-sum-exp
        return out_PHK

    return attention_by_documents(call, packed, attention, one_width=True)


@functools.cache
def use_flash_attention_3() -> None:
    """Let torch's FlashAttention operators run version 3 in this process, on a Hopper GPU with its package installed. A
    version that is already active stays."""
    has_package = importlib.util.find_spec("flash_attn_interface") is not None
    if not has_package or torch.cuda.get_device_capability() != (9, 0):
        return
    if (active := torch_attention.current_flash_attention_impl()) is None:
        active = "FA3"
        try:
            torch_attention.activate_flash_attention_impl(active)
        except (ImportError, RuntimeError) as error:
            # built for another torch, or without a backward
            logger.warning(
                "attention: flash_attn_interface is installed and torch cannot use it: %s", error
            )
            return
    logger.info("attention: torch runs FlashAttention by %s", active)


def why_not_varlen(call: AttentionCall) -> str | None:
    if (reason := why_not(call)) is not None:
        return reason
    if not has_flash(call.q):
        return "needs a GPU of compute capability 8.0 or newer"
    width = call.q.shape[-1]
    if width % ALIGNED or width > _WIDEST:
        return f"takes heads of a multiple of {ALIGNED} up to {_WIDEST}, not {width}"
    return None


class Release(NamedTuple):
    """A package of flash-attn."""

    name: str
    module: str
    """With ``flash_attn_func`` and ``flash_attn_varlen_func``."""
    distribution: str | None
    """Package that must be installed for the module to be this release; None: the module's name is enough."""
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

    def only_output(answer: Any) -> Any:
        # versions 3 and 4 may return the log-sum-exp too
        if isinstance(answer, tuple):
            return answer[0]
        return answer

    if call.layout is None:
        q_BTHK = call.q.transpose(1, 2)
        k_BSGK = call.k.transpose(1, 2)

        def dense(part_BSGK: Tensor) -> Any:
            return only_output(flash_functions()[0](q_BTHK, k_BSGK, part_BSGK, **options))

        width = call.q.shape[-1]
        return tuple(
            by_key_width(dense, value.transpose(1, 2), width).transpose(1, 2)
            for value in call.values
        )

    packed = call.layout.packed

    def attention(q_PHK: Tensor, k_PGK: Tensor, v_PGV: Tensor) -> Any:
        lengths = {
            "cu_seqlens_q": packed.cu_queries,
            "cu_seqlens_k": packed.cu_keys,
            "max_seqlen_q": packed.longest_queries,
            "max_seqlen_k": packed.longest_keys,
        }
        return only_output(flash_functions()[1](q_PHK, k_PGK, v_PGV, **lengths, **options))

    return attention_by_documents(call, packed, attention, one_width=True)


@functools.cache
def flash_functions() -> tuple[Any, Any, Release]:
    """Return ``flash_attn_func``, ``flash_attn_varlen_func`` and their release, the fastest installed one for this GPU;
    one that is broken is left out with a warning."""
    capability = torch.cuda.get_device_capability()[0]
    for release in RELEASES:
        if capability not in release.capabilities:
            continue
        try:
            # a module of that name may be another package's
            if importlib.util.find_spec(release.module) is None:
                continue
            if release.distribution is not None:
                version(release.distribution)
        except (ModuleNotFoundError, PackageNotFoundError):
            # the first: of the package that the module would be in
            continue
        try:
            module = importlib.import_module(release.module)
            return module.flash_attn_func, module.flash_attn_varlen_func, release
        except (ImportError, AttributeError) as error:
            # built for another torch; another package of that name
            logger.warning(
                "attention: %s is installed and cannot be used: %s", release.module, error
            )
    raise ModuleNotFoundError(
        f"no flash-attn for compute capability {capability} is installed: pip install --no-build-isolation flash-attn"
    )


def missing_flash() -> str | None:
    try:
        flash_functions()
    except ModuleNotFoundError:
        return "needs the package flash-attn, in a version for this GPU"
    return None


def why_not_flash(call: AttentionCall) -> str | None:
    if call.needs and not (release := flash_functions()[2]).windows_and_caps:
        return f"has no window and no soft cap in {release.name}, whose first versions left them out of the gradients"
    return why_not(call)
