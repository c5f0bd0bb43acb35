"""Exact match without writing a word: whether a model, given a whole answer, would have said every token of it itself.

Greedy decoding gives exactly the reference answer if and only if each of its tokens, EOS among them, is the most likely
one behind the prompt and the tokens before it: up to the first token that differs both have read the same. So one
forward pass over prompt and answer tells what writing the answer token by token would, wherever only right and wrong
are asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tape_ds.scoring.answers import Asked
from tape_ds.scoring.causal_lm import bare, evaluating, head_of
from tape_ds.scoring.each import Each, in_turn

BATCH_TOKENS = 8192
"""Tokens that are read at once, and whose logits exist at once."""


@dataclass(frozen=True)
class Marked:
    """A sequence of which some tokens are to be foreseen."""

    ids_T: Tensor
    """int64."""
    targets_T: Tensor
    """Which these are, bool; not the first."""


Batch = tuple[Marked, ...]


@dataclass(frozen=True)
class ExactMatch:
    """How many answers are right as a whole."""

    correct: int
    answers: int

    @property
    def share(self) -> float:
        """Of all, 0 to 1."""
        return self.correct / self.answers

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the ``share``."""
        return asdict(self) | {"share": self.share}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ExactMatch":
        """Return the inverse of :meth:`to_dict`."""
        return cls(values["correct"], values["answers"])


def right(
    model: nn.Module, asked: Sequence[Asked], *, each: Each = in_turn, batch_tokens: int = BATCH_TOKENS
) -> list[bool]:
    """Return whether ``model`` would answer each of ``asked`` exactly so, in their order; the rest as in
    :func:`foreseen`."""
    marked = [Marked(one.input_ids_1T[0], _last(one)) for one in asked]
    return [all(found) for found in foreseen(model, marked, each=each, batch_tokens=batch_tokens)]


def foreseen(
    model: nn.Module, marked: Sequence[Marked], *, each: Each = in_turn, batch_tokens: int = BATCH_TOKENS
) -> list[list[bool]]:
    """Return whether each target of each sequence is the most likely token behind those before it, in their order.

    Args:
        model: as :func:`tape_ds.scoring.loss_by_position.score` takes it; causal, so that the padding behind shorter
            sequences of a batch is seen by nothing that counts.
        marked: sequences; those of similar length are read together.
        each: calls the scoring of one batch on every one; under ZeRO-3 one that keeps all ranks in step. Each calls
            the model and its output head once.
        batch_tokens: of a batch, padding included; a longer sequence is a batch of its own.

    Raises:
        ValueError: ``batch_tokens`` below 1, or what :func:`head_of` refuses.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens = {batch_tokens}: 1 or more")
    causal_lm = bare(model)
    head = head_of(causal_lm)
    order = sorted(range(len(marked)), key=lambda place: len(marked[place].ids_T))
    batches = _batches([marked[place] for place in order], batch_tokens)
    found = [one for batch in each(lambda batch: _foreseen(causal_lm, head, batch), batches) for one in batch]
    placed = dict(zip(order, found, strict=True))
    return [placed[place] for place in range(len(marked))]


def _batches(ordered: Sequence[Marked], batch_tokens: int) -> list[Batch]:
    """Return sequences of rising length in batches of at most so many tokens."""
    batches: list[list[Marked]] = []
    for one in ordered:
        if not batches or (len(batches[-1]) + 1) * len(one.ids_T) > batch_tokens:
            batches.append([])
        batches[-1].append(one)
    return [tuple(batch) for batch in batches]


@torch.no_grad()
def _foreseen(causal_lm: Any, head: Callable[[Tensor], Tensor], batch: Batch) -> list[list[bool]]:
    """Of each sequence, whether every target is the most likely token. T: tokens of the longest, N: targets of all
    sequences."""
    pad = nn.utils.rnn.pad_sequence
    ids_BT = pad([one.ids_T for one in batch], batch_first=True)
    targets_BT = pad([one.targets_T for one in batch], batch_first=True)
    device = causal_lm.get_input_embeddings().weight.device
    with evaluating(causal_lm):
        hidden_BTD = causal_lm.base_model(input_ids=ids_BT.to(device), use_cache=False).last_hidden_state
        before_BT = targets_BT.roll(-1, dims=1)  # a target is foreseen by the token before it; the first is never one
        logits_NV = head(hidden_BTD[before_BT.to(device)])
    found_N = logits_NV.argmax(dim=-1).cpu() == ids_BT[targets_BT]
    return [sequence.tolist() for sequence in found_N.split(targets_BT.sum(dim=1).tolist())]


def _last(one: Asked) -> Tensor:
    """Return which tokens of a prompt with its answer are the answer's, bool [T]."""
    length = one.input_ids_1T.shape[1]
    return torch.arange(length) >= length - one.targets
