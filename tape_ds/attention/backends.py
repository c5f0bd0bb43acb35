"""Choice of the backend for a call: the one asked for, or the one that a stored measurement found fastest.

``auto`` reads ``table.json``, whose rows ``python -m benchmarks choose`` took from measurements of attention and of
decoding in ``benchmarks/results/``: nothing is preferred to torch's own attention without a measurement on that chip.
The choice and its reason are logged once.
"""

import functools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape_ds.attention import BACKENDS, cannot, requested
from tape_ds.attention.call import AttentionCall, joined
from tape_ds.attention.document_layout import FEW_QUERIES
from tape_ds.attention.flash import (
    attention_by_flash,
    attention_by_varlen,
    missing_flash,
    why_not_flash,
    why_not_varlen,
)
from tape_ds.attention.flex import FLEX_QUERIES, attention_by_flex
from tape_ds.attention.fused import attention_by_triton
from tape_ds.attention.fused import why_not as why_not_triton
from tape_ds.attention.plain import attention_by_reference
from tape_ds.attention.score_bias import ScoreBias
from tape_ds.attention.sdpa import attention_by_sdpa
from tape_ds.errors import did_you_mean
from tape_ds.kernels import jit

logger = logging.getLogger(__name__)

TABLE = Path(__file__).with_name("table.json")
# Tensors of torch's meta device are counted as a GPU's: their shapes go the way that a GPU's would.
_GPUS = ("cuda", "meta")

_FUNCTIONS: dict[str, Callable[[AttentionCall], tuple[Tensor, ...]]] = {
    "flash": attention_by_flash,
    "flex": functools.partial(joined, attention_by_flex),
    "reference": functools.partial(joined, attention_by_reference),
    "sdpa": attention_by_sdpa,
    "triton": attention_by_triton,
    "varlen": attention_by_varlen,
}


class StoredChoice(NamedTuple):
    """A row of the table: the fastest backend for these calls, and its measurement."""

    device: str
    """"cpu", or "sm_90" for compute capability 9.0."""
    dtype: str
    key_width: int
    value_width: int
    """Of all values together."""
    packed: bool
    """Whether sequences hold several documents, or padding."""
    min_tokens: int
    """Fewest queries."""
    max_tokens: int
    """Most queries."""
    backend: str
    source: str


# Read here, not in a call: a compiled graph cannot open files.
ROWS = tuple(StoredChoice(**row) for row in json.loads(TABLE.read_text(encoding="utf-8")))


class Chip(NamedTuple):
    type: str
    """"cpu", "cuda"."""
    name: str
    """As :class:`StoredChoice` names it."""


def chip_of(device: torch.device) -> Chip:
    if device.type != "cuda":
        return Chip(device.type, device.type)
    return Chip("cuda", "sm_{}{}".format(*torch.cuda.get_device_capability(device)))


def run(name: str, call: AttentionCall) -> tuple[Tensor, ...]:
    return _FUNCTIONS[name](call)


def choose(backend: str, call: AttentionCall) -> str:
    name = requested(backend)
    if name == "auto":
        name, reason = _fastest(call)
    else:
        if name not in BACKENDS:
            raise ValueError(
                f"attention backend {name!r} is unknown; {did_you_mean(name, ['auto', *BACKENDS])}"
            )
        unfit = missing(name, chip_of(call.q.device).type) or _why_not(name, call)
        if unfit:
            raise ValueError(f"attention backend {name!r} {unfit}; choose auto or sdpa")
        reason = "asked for"
    # a log line would break the graph
    if not torch.compiler.is_compiling():
        _log_once(f"{name} ({reason})")
    return name


def _fastest(call: AttentionCall) -> tuple[str, str]:
    """Return what ``auto`` chooses, and why."""
    device, chip = chip_of(call.q.device)
    queries = call.q.shape[2]
    width = call.q.shape[-1]
    columns = sum(value.shape[-1] for value in call.values)
    if call.changes_scores:
        # With fewer queries than one block its kernel gains nothing, and every step of decoding, one key more than the
        # last, would compile it again.
        what = "scores with the encoding's bias, a soft cap or sinks"
        # Its backward adds a learned bias's gradient for every score by atomic additions to few addresses.
        learns = isinstance(call.bias, ScoreBias) and call.bias.learned and torch.is_grad_enabled()
        takes_flex = device == "cuda" and queries >= FLEX_QUERIES and not learns
        if takes_flex and (missing("flex", device) or _why_not("flex", call)) is None:
            return "flex", f"auto on cuda: {what} inside the kernel, no T x S matrix"
        return "sdpa", f"auto on {device}: {what} for a block of queries at a time"

    # Without a measurement: torch's own.
    name = "sdpa"
    reason = "torch's fused kernels, no T x S matrix"
    if call.layout is not None or call.window is not None:
        reason = "documents one by one, or by one mask where they are short"
        if call.window is not None:
            reason = "blocks of queries, each over the keys that its window reaches"
        if queries > FEW_QUERIES and device in _GPUS:
            unfit = _why_not("varlen", call)
            reason = f"documents one by one or by masks, a window by blocks of queries, since varlen {unfit}"
            if unfit is None:
                name = "varlen"
                reason = "documents, padding or a window without a mask, in one call per K columns of the value"
    elif columns > width and device == "cpu":
        reason += "; a wide value by queries and keys padded to its width"
    elif columns > width:
        reason += (
            "; a wide value by one call per K columns, as no measurement on this chip is stored"
        )

    if call.window is None:
        row = measured(
            chip,
            str(call.q.dtype).removeprefix("torch."),
            width,
            columns,
            call.layout is not None,
            queries,
        )
        if row is not None:
            unfit = missing(row.backend, device) or _why_not(row.backend, call)
            name = row.backend if unfit is None else name
            reason = f"fastest in {row.source}"
            if unfit is not None:
                reason = f"{row.backend}, {reason}, {unfit}"
    return name, f"auto on {chip}: {reason}"


def measured(
    chip: str, dtype: str, width: int, columns: int, packed: bool, queries: int
) -> StoredChoice | None:
    """Return the row of the table for calls of this kind; None where nothing was measured."""
    kind = (chip, dtype, width, columns, packed)
    fitting = [
        row for row in ROWS if row[:5] == kind and row.min_tokens <= queries <= row.max_tokens
    ]
    return max(fitting, key=lambda row: row.min_tokens, default=None)


def missing(name: str, device_type: str) -> str | None:
    """Return what a machine lacks for a backend."""
    no_cuda = BACKENDS[name].needs_cuda and device_type not in _GPUS
    if no_cuda or (name == "triton" and device_type != "cuda" and not jit.INTERPRETED):
        return "needs a CUDA device"
    if name == "flash":
        return missing_flash()
    if (
        name in ("flex", "triton")
        and device_type == "cuda"
        and (reason := jit.no_compiler()) is not None
    ):
        return f"cannot be built here: {reason}"
    return None


def _why_not(name: str, call: AttentionCall) -> str | None:
    """Return why a backend cannot compute a call, or None."""
    if (reason := cannot(name, call.needs)) is not None:
        return reason
    if name == "flex" and call.bias is not None and getattr(call.bias, "element", None) is None:
        return "cannot compute this encoding's bias"
    if name not in ("flash", "triton", "varlen"):
        return None
    if isinstance(call.offset, Tensor):
        return "cannot take an offset that is a tensor (a static cache inside torch.compile)"
    if name == "triton":
        return why_not_triton(call)
    if name == "varlen":
        return why_not_varlen(call)
    return why_not_flash(call)


@functools.cache
def _log_once(choice: str) -> Any:
    logger.info("attention: %s", choice)
