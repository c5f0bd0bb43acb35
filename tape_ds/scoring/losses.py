"""Losses of a causal LM on the tokens of long texts: by position, of consecutive blocks, or of any windows.

One forward pass computes the hidden states of the whole text; the output head is applied to a chunk at a time, so that
the logits (T x vocabulary: 3 GiB for 16,384 tokens and 49,152 entries in fp32) never exist as a whole. Losses are in
nats, computed from fp32 logits and summed in fp64.

The token at position t is the target that positions 0 .. t - 1 predict. Position 0 is not a target.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tape_ds.models.decoder import ExtendedDecoder, decoder_name, has_plain_head, logits_of
from tape_ds.models.decoder_configuration import changes_logits
from tape_ds.models.language_model import LanguageModel
from tape_ds.scoring import Each, in_turn
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.scoring.windows import Window, blocks


def bare(wrapped: nn.Module) -> Any:
    """Return the causal LM without the wrappers of DeepSpeed, DDP and peft; adapters stay active."""
    model: Any = wrapped
    while isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    if hasattr(model, "get_base_model"):
        if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
            raise ValueError(
                "a model with learned prompts cannot be scored: the prompt shifts every position"
            )
        model = model.get_base_model()
    return model


def unscorable(config: Any) -> str | None:
    """Return why a model with this configuration cannot be scored, or None."""
    if getattr(config, "auto_map", None) and changes_logits(config.get_text_config(decoder=True)):
        return "its own code changes the logits of its head, which this score does not reproduce"
    return None


def head_of(causal_lm: Any) -> Callable[[Tensor], Tensor]:
    """Return the function from hidden states [N, D] to logits [N, V]; ValueError if the model has none."""
    head = causal_lm.get_output_embeddings()
    if decoder_name(causal_lm) is None or head is None:
        raise ValueError(
            f"{type(causal_lm).__name__} has no decoder with an output head: not a causal LM"
        )
    if (reason := unscorable(causal_lm.config)) is not None:
        raise ValueError(reason)
    ours = isinstance(causal_lm, LanguageModel) and not isinstance(causal_lm, ExtendedDecoder)
    if ours or not type(causal_lm).__module__.startswith("transformers."):
        return head
    try:
        plain = has_plain_head(causal_lm)
    except TypeError:
        # the source of its forward is not available
        return head
    # e.g. scaled or capped logits
    if plain:
        return head
    return lambda hidden_ND: logits_of(causal_lm, hidden_ND[None])[0]


def decoder_of(causal_lm: Any) -> Any:
    """Return the decoder of a model that :func:`head_of` accepts."""
    return getattr(causal_lm, str(decoder_name(causal_lm)))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode; afterwards restore the mode of every module, which may differ between modules."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def target_losses(
    model: nn.Module, input_ids_BT: Tensor, *, first: int = 1, chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """Return the loss of every target from position ``first`` on, and whether it was the most likely token.

    Args:
        model: a causal LM of transformers or of the same form (base model, ``get_output_embeddings``); bare, or wrapped
            by peft, DistributedDataParallel or a DeepSpeed engine. Under ZeRO-3 every rank must score texts of the
            same length, since each call of the head gathers its weight. It is scored in evaluation mode; the mode of
            every module is restored.
        input_ids_BT: token ids int64 [B, T], independent sequences without padding.
        first: position of the first target, 1 .. T - 1.
        chunk: positions, of all sequences together, whose logits exist at once.

    Returns:
        Losses in nats, fp64, and bools, both [B, N] on the CPU, N = T - first.

    Raises:
        ValueError: ``first`` outside its bounds, a token outside the vocabulary, or see :func:`head_of`.
    """
    tokens = input_ids_BT.shape[-1]
    if not 1 <= first < tokens:
        raise ValueError(
            f"first = {first}: 1 to {tokens - 1}, since a target needs a token before it"
        )
    causal_lm = bare(model)
    head = head_of(causal_lm)
    lowest = int(input_ids_BT.min())
    highest = int(input_ids_BT.max())
    # a wrapper with pictures has none itself
    rows = causal_lm.config.get_text_config(decoder=True).vocab_size
    if not 0 <= lowest <= highest < rows:
        raise ValueError(f"token ids {lowest} .. {highest} leave the vocabulary of {rows}")

    ids_BT = input_ids_BT.to(causal_lm.get_input_embeddings().weight.device)
    with evaluating(causal_lm):
        hidden_BTD = decoder_of(causal_lm)(input_ids=ids_BT, use_cache=False).last_hidden_state
        # M = B N
        hidden_MD = hidden_BTD[:, first - 1 : -1].flatten(0, 1)
        targets_M = ids_BT[:, first:].flatten()
        # Allocated once: small results left between the chunks' logits would keep the allocator from reusing their
        # memory, and the peak would grow with the length after all.
        nll_M = torch.empty(len(targets_M), dtype=torch.float64)
        foreseen_M = torch.empty(len(targets_M), dtype=torch.bool)
        for start in range(0, len(targets_M), chunk):
            part = slice(start, start + chunk)
            logits_CV = head(hidden_MD[part]).float()
            nll_M[part] = nn.functional.cross_entropy(logits_CV, targets_M[part], reduction="none")
            foreseen_M[part] = logits_CV.argmax(dim=-1) == targets_M[part]
    return nll_M.view(len(ids_BT), -1), foreseen_M.view(len(ids_BT), -1)


def score_spans(model: nn.Module, input_ids_1T: Tensor, span: int, chunk: int = 1024) -> SpanLosses:
    """Return the loss by position of one text: the loss of the token at t counts in the span that holds t, so the first
    span has one target less.

    Args:
        model, chunk: see :func:`target_losses`.
        input_ids_1T: token ids int64 [1, T], T >= 2.
        span: positions per span, 2 or more.
    """
    if input_ids_1T.ndim != 2 or input_ids_1T.shape[0] != 1 or input_ids_1T.shape[1] < 2:
        raise ValueError(
            f"input_ids_1T has shape {tuple(input_ids_1T.shape)}: one document [1, T], T >= 2, is needed"
        )
    if span < 2 or chunk < 1:
        raise ValueError(f"span = {span}, chunk = {chunk}: span must be 2 or more, chunk 1 or more")
    losses_1N, _ = target_losses(model, input_ids_1T, chunk=chunk)
    losses_N = losses_1N[0]
    nll = []
    counts = []
    starts = range(0, len(losses_N) + 1, span)
    for start in starts:
        # target t is entry t - 1
        within = losses_N[max(0, start - 1) : start + span - 1]
        counts.append(len(within))
        nll.append(float(within.mean()))
    return SpanLosses(span, tuple(starts), tuple(nll), tuple(counts))


@dataclass(frozen=True)
class Perplexity:
    """A model's loss on blocks of one length."""

    length: int
    """Tokens per block."""
    nll: float
    """Mean loss over all targets, in nats per token."""
    targets: int
    blocks: int

    @property
    def value(self) -> float:
        return exp(self.nll)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "perplexity": self.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Perplexity":
        return cls(values["length"], values["nll"], values["targets"], values["blocks"])


def exp(nll: float) -> float:
    # beyond a float
    if not nll > 700:
        return math.exp(nll)
    return math.inf


def score_blocks(
    model: nn.Module, documents_1T: Sequence[Tensor], length: int, *, each: Each = in_turn
) -> Perplexity:
    """Return the perplexity of ``documents_1T`` in consecutive blocks of ``length`` tokens, each predicted separately.

    Fewer than ``length`` tokens at the end of a document are dropped. Perplexity is exp of the mean loss over all
    targets, so documents weigh as much as they have tokens (TAPE's published evaluation takes the mean over batches of
    unequal size instead). Lengths compare on the same documents: one whose length is a multiple of each is read whole
    at all of them; only the first tokens of the blocks, 1 in ``length``, differ.

    Args:
        model: see :func:`target_losses`.
        documents_1T: token ids int64 [1, T], each of ``length`` tokens or more: a shorter one would be left out, which
            changes what is compared.
        length: 2 or more.
        each: see :data:`tape_ds.scoring.Each`; called once, with all blocks.
    """
    if not documents_1T:
        raise ValueError("no documents to score")
    shortest = min(document_1T.shape[-1] for document_1T in documents_1T)
    if shortest < length:
        raise ValueError(f"a document of {shortest} tokens has no block of {length}")
    pieces = []
    for document_1T in documents_1T:
        for window in blocks(document_1T.shape[-1], length):
            pieces.append(document_1T[:, window.start : window.end])
    # every block has the same number of targets, so the mean of means is the mean
    losses = each(lambda block_1T: score_spans(model, block_1T, span=length).mean, pieces)
    return Perplexity(
        length, math.fsum(losses) / len(pieces), (length - 1) * len(pieces), len(pieces)
    )


@dataclass(frozen=True)
class WindowLoss:
    """Sums over the targets of one window."""

    nll: float
    """Loss in nats, summed in fp64."""
    foreseen: int
    """Targets that were the most likely token."""
    targets: int


def score_windows(
    model: nn.Module,
    windows: Sequence[tuple[np.ndarray, Window]],
    *,
    begin: int | None = None,
    batch: int = 1,
    chunk: int = 1024,
) -> list[WindowLoss]:
    """Return the losses of ``windows``, in their order.

    Args:
        model, chunk: see :func:`target_losses`.
        windows: pairs of a text's token ids, int [n], and a window of it.
        begin: id of the token that each window is read after.
        batch: neighbours of the same shape that are read at once; changes only the rounding.
    """
    losses: list[WindowLoss] = []
    for _, alike in groupby(windows, lambda pair: (pair[1].end - pair[1].start, pair[1].targets)):
        same = list(alike)
        for at in range(0, len(same), batch):
            together = same[at : at + batch]
            # alike, so that none needs padding
            ids_BT = torch.stack([sequence(ids, window, begin) for ids, window in together])
            first = ids_BT.shape[-1] - together[0][1].targets
            nll_BN, foreseen_BN = target_losses(model, ids_BT, first=first, chunk=chunk)
            sums = zip(nll_BN.sum(dim=-1).tolist(), foreseen_BN.sum(dim=-1).tolist(), strict=True)
            losses += [WindowLoss(nll, foreseen, nll_BN.shape[-1]) for nll, foreseen in sums]
    return losses


def sequence(ids: np.ndarray, window: Window, begin: int | None) -> Tensor:
    """Return a window's tokens, int64 [T], after ``begin``."""
    own = torch.from_numpy(ids[window.start : window.end].astype(np.int64))
    if begin is None:
        return own
    return torch.cat([own.new_tensor([begin]), own])
