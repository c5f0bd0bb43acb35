"""Loss by position: how well a model predicts each stretch of a long document.

One forward pass gives hidden states for the whole document; the output head is applied to a stretch at a time, so that
the logits (T x vocabulary, 3 GiB for 16,384 tokens and 49,152 entries in fp32) never exist as a whole. Losses are in
nats, taken from fp32 logits and summed in fp64.

The token at position t is the target that positions 0 .. t - 1 predict; its loss is counted in the span that holds t.
Position 0 has no context and is no target, so the first span counts one token less.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tape_ds.scoring.causal_lm import bare, evaluating


@dataclass(frozen=True)
class SpanLosses:
    """Mean negative log-likelihood per span of positions, and how many targets each mean is over."""

    span: int
    """Positions per span; the last one of a document may be shorter."""
    starts: tuple[int, ...]
    """First position of each span: 0, span, 2 span, ..."""
    nll: tuple[float, ...]
    """Mean loss of each span's targets, in nats per token."""
    counts: tuple[int, ...]
    """Targets in each span."""

    @property
    def mean(self) -> float:
        """Mean over all targets, in nats per token."""
        return self.mean_between(0)

    def mean_between(self, first: int, last: int | None = None) -> float:
        """Mean over the targets of the spans that start in ``first .. last - 1`` (``last`` None: to the end).

        Raises:
            ValueError: no span starts there.
        """
        chosen = [
            (nll, count)
            for start, nll, count in zip(self.starts, self.nll, self.counts, strict=True)
            if start >= first and (last is None or start < last)
        ]
        if not chosen:
            raise ValueError(f"no span starts in {first} .. {last}: spans start at {self.starts}")
        return math.fsum(nll * count for nll, count in chosen) / sum(count for _, count in chosen)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the overall ``mean``."""
        return {
            "span": self.span,
            "starts": list(self.starts),
            "nll": list(self.nll),
            "counts": list(self.counts),
            "mean": self.mean,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SpanLosses":
        """The inverse of :meth:`to_dict`; ``mean`` is derived again."""
        return cls(values["span"], tuple(values["starts"]), tuple(values["nll"]), tuple(values["counts"]))

    @classmethod
    def merge(cls, losses: Iterable["SpanLosses"]) -> "SpanLosses":
        """Several documents as one: each span's mean over the targets of all documents that reach it.

        Raises:
            ValueError: nothing to merge, or different spans.
        """
        all_losses = list(losses)
        if len({item.span for item in all_losses}) != 1:
            raise ValueError(f"losses to merge must share one span: {[item.span for item in all_losses]}")
        longest = max(all_losses, key=lambda item: len(item.starts))
        nll, counts = [], []
        for at in range(len(longest.starts)):
            here = [(item.nll[at], item.counts[at]) for item in all_losses if at < len(item.starts)]
            counts.append(sum(count for _, count in here))
            nll.append(math.fsum(value * count for value, count in here) / counts[-1])
        return cls(longest.span, longest.starts, tuple(nll), tuple(counts))


@torch.no_grad()
def score(model: nn.Module, input_ids_1T: torch.Tensor, span: int, chunk: int = 1024) -> SpanLosses:
    """Loss by position of one document under ``model``.

    Args:
        model: a causal LM of transformers or of the same form (base model, ``get_output_embeddings``); bare, wrapped by
            peft, by DistributedDataParallel or by a DeepSpeed engine. Under ZeRO-3 every rank must score a document of
            the same length, since each call of the head gathers its weight. It is scored in evaluation mode; every
            module's mode is restored.
        input_ids_1T: token ids int64 [1, T], T >= 2.
        span: positions per span, 2 or more.
        chunk: positions whose logits exist at once.

    Raises:
        ValueError: shapes and sizes as above, a token outside the vocabulary, a model whose logits are not
            ``head(hidden)``.
    """
    if input_ids_1T.ndim != 2 or input_ids_1T.shape[0] != 1 or input_ids_1T.shape[1] < 2:
        raise ValueError(f"input_ids_1T has shape {tuple(input_ids_1T.shape)}: one document [1, T], T >= 2, is needed")
    if span < 2 or chunk < 1:
        raise ValueError(f"span = {span}, chunk = {chunk}: span must be 2 or more, chunk 1 or more")
    causal_lm = bare(model)
    _require_plain_head(causal_lm, int(input_ids_1T.min()), int(input_ids_1T.max()))
    ids_1T = input_ids_1T.to(causal_lm.get_input_embeddings().weight.device)
    with evaluating(causal_lm):
        hidden_1TD = causal_lm.base_model(input_ids=ids_1T, use_cache=False).last_hidden_state
        nll_T = _target_losses(causal_lm.get_output_embeddings(), hidden_1TD[0], ids_1T[0], chunk)
    return _by_span(nll_T, span)


def _target_losses(head: nn.Module, hidden_TD: torch.Tensor, ids_T: torch.Tensor, chunk: int) -> torch.Tensor:
    """fp64 [T - 1] on the CPU: the loss of targets 1 .. T - 1, with [chunk, vocabulary] logits at a time."""
    last = len(ids_T) - 1
    losses = []
    for at in range(0, last, chunk):
        end = min(at + chunk, last)
        logits_CV = head(hidden_TD[at:end]).float()
        losses.append(nn.functional.cross_entropy(logits_CV, ids_T[at + 1 : end + 1], reduction="none").cpu())
    return torch.cat(losses).double()


def _by_span(nll_T: torch.Tensor, span: int) -> SpanLosses:
    """Targets 1 .. T - 1 -> their spans."""
    nll, counts = [], []
    starts = range(0, len(nll_T) + 1, span)
    for start in starts:
        here = nll_T[max(0, start - 1) : start + span - 1]  # target t is entry t - 1
        counts.append(len(here))
        nll.append(float(here.mean()))
    return SpanLosses(span, tuple(starts), tuple(nll), tuple(counts))


def _require_plain_head(causal_lm: Any, lowest: int, highest: int) -> None:
    """Refuse what would give wrong numbers in silence."""
    if causal_lm.base_model is causal_lm or causal_lm.get_output_embeddings() is None:
        raise ValueError(f"{type(causal_lm).__name__} has no base model with an output head: not a causal LM")
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(causal_lm.config, name, None) not in (None, 1, 1.0):
            raise ValueError(f"{name} of this model changes the head's output, which this score does not reproduce")
    if not 0 <= lowest <= highest < causal_lm.config.vocab_size:
        raise ValueError(f"token ids {lowest} .. {highest} leave the vocabulary of {causal_lm.config.vocab_size}")
