"""LongPPL: the loss over the tokens that need a long context (Fang et al. 2024, arXiv:2410.23771).

A token is a *key token* if the whole window predicts it well, and much better than its last ``SHORT`` tokens do:

    loss(short) - loss(long) > 2    and    loss(long) < 2    (nats)

The short context begins again every ``STRIDE`` tokens, so it has ``SHORT`` to ``SHORT + STRIDE - 1`` of them, as in the
package longppl 0.3.0. Perplexity over all tokens hardly shows what a model makes of a long context, since few tokens
need one.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tape_ds.scoring import losses, windows
from tape_ds.scoring.models import used_at

SHORT = 4096
STRIDE = 1024
GAIN = 2.0
"""Nats by which the long context must be better."""
KNOWN = 2.0
"""Nats below which the loss with the long context must be."""


@dataclass(frozen=True)
class LongLoss:
    """Sums over the tokens after the first short context."""

    key_nll: float
    """Loss of the key tokens, in nats."""
    key_tokens: int
    nll: float
    """Loss of all of them."""
    targets: int


class LongJob(NamedTuple):
    """A window of a text, read with its long context and with short ones."""

    source: str
    length: int
    text: int
    window: windows.Window


def jobs(
    texts: Mapping[str, Sequence[Any]], lengths: Sequence[int], short: int
) -> dict[str, LongJob]:
    """Return a job for each window of each length that is longer than the short context, the longest first."""
    planned = {}
    for length in sorted(lengths, reverse=True):
        # no token has a longer context than the short one
        if length <= short:
            continue
        for source, parts in texts.items():
            for at, text in enumerate(parts):
                for window in windows.blocks(len(text.ids), length):
                    key = f"{source} long ppl {at} length {length} from {window.start}"
                    planned[key] = LongJob(source, length, at, window)
    return planned


def score(
    model: nn.Module,
    judge: nn.Module,
    ids_1T: Tensor,
    *,
    short: int = SHORT,
    stride: int = STRIDE,
    chunk: int = 1024,
) -> LongLoss:
    """Return the loss of ``model`` over the key tokens that ``judge`` finds, which may be the same model.

    Args:
        ids_1T: token ids int64 [1, T] of both, T > ``short``.
        short: tokens of the shortest short context.
        stride: targets that share the beginning of a short context.
        chunk: see :func:`tape_ds.scoring.losses.target_losses`.
    """
    # N: tokens after the first short context
    judged_N = _long_losses(judge, ids_1T, short, chunk)
    own_N = judged_N
    if model is not judge:
        own_N = _long_losses(model, ids_1T, short, chunk)
    short_N = short_losses(judge, ids_1T, short=short, stride=stride, chunk=chunk)
    key_N = key_tokens(judged_N, short_N)
    return LongLoss(float(own_N[key_N].sum()), int(key_N.sum()), float(own_N.sum()), len(own_N))


def key_tokens(long_N: Tensor, short_N: Tensor) -> Tensor:
    return (short_N - long_N > GAIN) & (long_N < KNOWN)


def short_losses(
    model: nn.Module, ids_1T: Tensor, *, short: int, stride: int, chunk: int
) -> Tensor:
    """Return the losses fp64 [T - short] of the tokens from ``short`` on, each with a short context."""
    parts = []
    total = ids_1T.shape[-1]
    for start in range(0, total - short, stride):
        window_1T = ids_1T[:, start : min(total, start + short + stride)]
        with used_at(losses.bare(model), short + stride):
            nll_1N, _ = losses.target_losses(model, window_1T, first=short, chunk=chunk)
        parts.append(nll_1N[0])
    return torch.cat(parts)


def _long_losses(model: nn.Module, ids_1T: Tensor, short: int, chunk: int) -> Tensor:
    with used_at(losses.bare(model), ids_1T.shape[-1]):
        nll_1N, _ = losses.target_losses(model, ids_1T, first=short, chunk=chunk)
    return nll_1N[0]


def work(
    model: nn.Module,
    judge: nn.Module,
    texts: Mapping[str, Sequence[Any]],
    short: int,
    chunk: int,
    job: LongJob,
) -> dict[str, Any]:
    ids = texts[job.source][job.text].ids[job.window.start : job.window.end]
    ids_1T = torch.from_numpy(ids.astype(np.int64))[None]
    return asdict(score(model, judge, ids_1T, short=short, chunk=chunk))


def figures(planned: Mapping[str, LongJob], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an entry for each source and length."""
    by_length: defaultdict[tuple[str, int], list[LongLoss]] = defaultdict(list)
    for key, job in planned.items():
        by_length[job.source, job.length].append(LongLoss(**found[key]))
    entries = []
    for (source, length), parts in sorted(by_length.items(), key=itemgetter(0)):
        entries.append({"source": source, "length": length, "windows": len(parts), **pooled(parts)})
    return entries


def pooled(parts: Iterable[LongLoss]) -> dict[str, Any]:
    """Return the means over all tokens of all windows; ``long_ppl`` is None without a key token."""
    listed = list(parts)
    keys = sum(part.key_tokens for part in listed)
    targets = sum(part.targets for part in listed)
    nll = math.fsum(part.nll for part in listed) / targets
    key_nll = None
    long_ppl = None
    if keys:
        key_nll = math.fsum(part.key_nll for part in listed) / keys
        long_ppl = losses.exp(key_nll)
    return {
        "long_ppl": long_ppl,
        "key_nll": key_nll,
        "key_tokens": keys,
        "targets": targets,
        "nll": nll,
        "perplexity": losses.exp(nll),
    }
