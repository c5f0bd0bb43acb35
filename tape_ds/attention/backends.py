"""Which backend answers a call: the one asked for, or the one that a stored measurement says is fastest.

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

from tape_ds.attention.call import AttentionCall, joined
from tape_ds.attention.document_layout import FEW_QUERIES
from tape_ds.attention.flash import attention_by_flash
from tape_ds.attention.flash import missing as missing_flash
from tape_ds.attention.flash import why_not as why_not_flash
from tape_ds.attention.flex import FLEX_QUERIES, attention_by_flex
from tape_ds.attention.fused import attention_by_triton
from tape_ds.attention.fused import why_not as why_not_triton
from tape_ds.attention.names import NEEDS_CUDA, cannot, requested
from tape_ds.attention.plain import attention_by_reference
from tape_ds.attention.score_bias import ScoreBias
from tape_ds.attention.sdpa import attention_by_sdpa
from tape_ds.attention.varlen import attention_by_varlen
from tape_ds.attention.varlen import why_not as why_not_varlen
from tape_ds.errors import did_you_mean
from tape_ds.kernels import jit

logger = logging.getLogger(__name__)

TABLE = Path(__file__).with_name("table.json")
# Tensors of torch's meta device stand for a GPU's: their shapes go the way that a GPU's would.
_GPUS = ("cuda", "meta")

_BACKENDS: dict[str, Callable[[AttentionCall], tuple[Tensor, ...]]] = {
    "flash": attention_by_flash,
    "flex": functools.partial(joined, attention_by_flex),
    "reference": functools.partial(joined, attention_by_reference),
    "sdpa": attention_by_sdpa,
    "triton": attention_by_triton,
    "varlen": attention_by_varlen,
}


def run(name: str, call: AttentionCall) -> tuple[Tensor, ...]:
    return _BACKENDS[name](call)


def choose(backend: str, call: AttentionCall) -> str:
    name = requested(backend)
    if name == "auto":
        return _auto(call)
    if name not in _BACKENDS:
        raise ValueError(f"attention backend {name!r} is unknown; {did_you_mean(name, ['auto', *_BACKENDS])}")
    reason = missing(name, chip_of(call.q.device).type) or _why_not(name, call)
    if reason:
        raise ValueError(f"attention backend {name!r} {reason}; choose auto or sdpa")
    _say(f"{name} (asked for)")
    return name


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
_ROWS = tuple(StoredChoice(**row) for row in json.loads(TABLE.read_text(encoding="utf-8")))


def table() -> tuple[StoredChoice, ...]:
    return _ROWS


class Chip(NamedTuple):
    type: str
    """"cpu", "cuda"."""
    name: str
    """As :class:`StoredChoice` names it."""


def chip_of(device: torch.device) -> Chip:
    if device.type != "cuda":
        return Chip(device.type, device.type)
    return Chip("cuda", "sm_{}{}".format(*torch.cuda.get_device_capability(device)))


def _auto(call: AttentionCall) -> str:
    device, chip = chip_of(call.q.device)
    if call.changes_scores:
        # With fewer queries than one block its kernel gains nothing, and every step of decoding, one key more than the
        # last, would compile it again.
        what = "scores with the encoding's bias, a soft cap or sinks"
        # Its backward adds a learned bias's gradient for every score by atomic additions to few addresses.
        learns = isinstance(call.bias, ScoreBias) and call.bias.learned and torch.is_grad_enabled()
        takes_flex = device == "cuda" and call.q.shape[2] >= FLEX_QUERIES and not learns
        if takes_flex and (missing("flex", device) or _why_not("flex", call)) is None:
            _say(f"flex (auto on cuda: {what} inside the kernel, no T x S matrix)")
            return "flex"
        _say(f"sdpa (auto on {device}: {what} for a block of queries at a time)")
        return "sdpa"
    name, reason = _unmeasured(call, device)
    row = None if call.window is not None else _measured(call, chip)
    if row is not None:
        unfit = missing(row.backend, device) or _why_not(row.backend, call)
        if unfit is None:
            name, reason = row.backend, f"fastest in {row.source}"
        else:
            reason = f"{row.backend}, fastest in {row.source}, {unfit}"
    _say(f"{name} (auto on {chip}: {reason})")
    return name


def _unmeasured(call: AttentionCall, device: str) -> tuple[str, str]:
    masked = call.layout is not None or call.window is not None
    if masked and call.q.shape[2] > FEW_QUERIES and device in _GPUS:
        unfit = _why_not("varlen", call)
        if unfit is None:
            return "varlen", "documents, padding or a window without a mask, in one call per K columns of the value"
        return "sdpa", f"documents one by one or by masks, a window by blocks of queries, since varlen {unfit}"
    if call.window is not None:
        return "sdpa", "blocks of queries, each over the keys that its window reaches"
    if call.layout is not None:
        return "sdpa", "documents one by one, or by one mask where they are short"
    if sum(value.shape[-1] for value in call.values) <= call.q.shape[-1]:
        return "sdpa", "torch's fused kernels, no T x S matrix"
    if device == "cpu":
        return "sdpa", "torch's fused kernels, no T x S matrix; a wide value by queries and keys padded to its width"
    wide = "a wide value by one call per K columns, as no measurement on this chip is stored"
    return "sdpa", f"torch's fused kernels, no T x S matrix; {wide}"


def _measured(call: AttentionCall, chip: str) -> StoredChoice | None:
    columns, packed = sum(value.shape[-1] for value in call.values), call.layout is not None
    kind = (chip, str(call.q.dtype).removeprefix("torch."), call.q.shape[-1], columns, packed)
    queries = call.q.shape[2]
    fitting = [row for row in table() if row[:5] == kind and row.min_tokens <= queries <= row.max_tokens]
    return max(fitting, key=lambda row: row.min_tokens, default=None)


def missing(name: str, device_type: str) -> str | None:
    if NEEDS_CUDA[name] and device_type not in _GPUS:
        return "needs a CUDA device"
    if name == "flash":
        return missing_flash()
    if name == "triton" and device_type != "cuda" and not jit.INTERPRETED:
        return "needs a CUDA device"
    if name in ("flex", "triton") and device_type == "cuda" and (reason := jit.no_compiler()) is not None:
        return f"cannot be built here: {reason}"
    return None


def _why_not(name: str, call: AttentionCall) -> str | None:
    if (reason := cannot(name, call.needs)) is not None:
        return reason
    elementwise = isinstance(call.bias, ScoreBias) and call.bias.element is not None
    if call.bias is not None and name == "flex" and not elementwise:
        return "cannot compute this encoding's bias"
    if name not in ("flash", "triton", "varlen"):
        return None
    if call.bias is not None:
        return "cannot add a bias to the scores"
    if isinstance(call.offset, Tensor):
        return "cannot take an offset that is a tensor (a static cache inside torch.compile)"
    if name == "triton":
        return why_not_triton(call)
    return why_not_varlen(call) if name == "varlen" else why_not_flash(call)


def _say(choice: str) -> None:
    if not torch.compiler.is_compiling():  # a log line would break the graph
        _say_once(choice)


@functools.cache
def _say_once(choice: str) -> Any:
    logger.info("attention: %s", choice)
