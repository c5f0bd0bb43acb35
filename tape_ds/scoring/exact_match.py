"""Exact match without writing a word: whether a model, given a whole answer, would have written every token of it.

Greedy decoding gives exactly the reference answer if and only if each of its tokens, EOS among them, is the most likely
one after the prompt and the tokens before it: up to the first token that differs, both have read the same. So one
forward pass over prompt and answer finds what writing the answer token by token would, wherever only right and wrong
matter. Where a sequence has several answers, each is judged after the right earlier ones.

Results of generated tasks are stored by length: of arithmetic a cell for each pair of operand lengths, of addressing
an :class:`Answered` for each test.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tape_ds.data.generated.task import GeneratedSample, Test, ids_of, label
from tape_ds.scoring.causal_lm import bare, evaluating, head_of
from tape_ds.scoring.each import Each, in_turn

BATCH_TOKENS = 8192
"""Tokens that are read at once, and whose logits exist at once."""
Z = 1.959964
"""Deviations of a normal distribution that hold 95 % of it."""


Batch = list[tuple[Tensor, Tensor]]
"""Ids and which of them are answers, [T] each."""


def judge(
    model: nn.Module,
    vocabulary: Sequence[str],
    samples: Sequence[GeneratedSample],
    *,
    each: Each = in_turn,
    batch_tokens: int = BATCH_TOKENS,
) -> list[list[bool]]:
    """Return whether each answer of each sample is the most likely token after those before it, in their order.

    Args:
        model: as :func:`tape_ds.scoring.loss_by_position.score` takes it; causal, so that the padding after shorter
            sequences of a batch is seen by nothing that counts.
        vocabulary: the words in the order of their ids.
        samples: those of similar length are read together.
        each: calls the scoring of one batch on every one; under ZeRO-3 one that keeps all ranks in step. Each calls
            the model and its output head once.
        batch_tokens: of a batch, padding included; a longer sequence is a batch by itself.

    Raises:
        ValueError: ``batch_tokens`` below 1, or what :func:`head_of` refuses.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens = {batch_tokens}: 1 or more")
    causal_lm = bare(model)
    head = head_of(causal_lm)
    ids = ids_of(vocabulary)
    order = sorted(range(len(samples)), key=lambda place: len(samples[place].words))
    batches: list[Batch] = []
    for place in order:
        words = samples[place].words
        if not batches or (len(batches[-1]) + 1) * len(words) > batch_tokens:
            batches.append([])
        answers_T = torch.zeros(len(words), dtype=torch.bool)
        answers_T[list(samples[place].answers)] = True
        batches[-1].append((torch.tensor([ids[word] for word in words]), answers_T))
    found = [one for batch in each(lambda batch: _judge(causal_lm, head, batch), batches) for one in batch]
    placed = dict(zip(order, found, strict=True))
    return [placed[place] for place in range(len(samples))]


@torch.no_grad()
def _judge(causal_lm: Any, head: Callable[[Tensor], Tensor], batch: Batch) -> list[list[bool]]:
    # T: tokens of the longest, N: answers of all sequences
    ids_BT, answers_BT = (nn.utils.rnn.pad_sequence(list(each), batch_first=True) for each in zip(*batch, strict=True))
    device = causal_lm.get_input_embeddings().weight.device
    with evaluating(causal_lm):
        hidden_BTD = causal_lm.base_model(input_ids=ids_BT.to(device), use_cache=False).last_hidden_state
        before_BT = answers_BT.roll(-1, dims=1)  # an answer follows from the token before it; the first is never one
        logits_NV = head(hidden_BTD[before_BT.to(device)])
    found_N = logits_NV.argmax(dim=-1).cpu() == ids_BT[answers_BT]
    return [sequence.tolist() for sequence in found_N.split(answers_BT.sum(dim=1).tolist())]


@dataclass(frozen=True)
class Answered:
    """The result of one test of addressing, whose answers count one by one."""

    length: int
    kind: str
    """See :class:`tape_ds.data.generated.task.Test`."""
    rows: int  # the name in stored results
    answers: int
    """In all sequences."""
    correct: int
    chance: float | None
    """Share of a uniform guess, 0 to 1."""

    @classmethod
    def of(cls, test: Test, found: Sequence[Sequence[bool]]) -> "Answered":
        """Count what :func:`judge` found in the sequences of a test."""
        answers, correct = sum(map(len, found)), sum(map(sum, found))
        return cls(test.size[0], test.kind, len(found), answers, correct, test.task.chance)

    @property
    def share(self) -> float:
        """Of right answers, 0 to 1."""
        return self.correct / self.answers

    @property
    def interval(self) -> tuple[float, float]:
        """The share's 95 % interval (Wilson's), as if the answers of a sequence were one: they are not independent."""
        share, square = self.share, Z * Z / self.rows
        middle = (share + square / 2) / (1 + square)
        reach = Z * math.sqrt(share * (1 - share) / self.rows + square / (4 * self.rows)) / (1 + square)
        return middle - reach, middle + reach

    @property
    def label(self) -> str:
        return label((self.length,), self.kind)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.share:.1%} [{low:.1%}, {high:.1%}] of {self.answers:,}, chance {self.chance:.1%}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the ``share`` and its ``interval``."""
        return asdict(self) | {"share": self.share, "interval": list(self.interval)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Answered":
        """Return the inverse of :meth:`to_dict`."""
        return cls(**{name: value for name, value in values.items() if name not in ("share", "interval")})


def whole_answers(found: Sequence[Sequence[bool]]) -> dict[str, Any]:
    """Count the sequences all of whose answers :func:`judge` found right; plain values for JSON."""
    correct = sum(map(all, found))
    return {"correct": correct, "answers": len(found), "share": correct / len(found)}


def means(cells: Iterable[Mapping[str, Any]], trained: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the means of a grid, for a model trained on operands of up to ``trained`` tokens: plain values for JSON.

    The mean of a whole grid means little without its trained part: of a grid of twice the trained lengths a quarter is
    trained, so a model that has learned its sequences and nothing beyond them already reaches 25 %.

    A cell has the lengths of its operands, ``first`` and ``second``, its ``samples`` (none: it does not count), and the
    number of them that were ``correct``. Every cell counts alike, however many samples it has. A mean has a ``value``
    from 0 to 1, None where no cell counts, and the number of its ``cells``.

    ``whole``: of every cell. ``trained``: neither operand longer than trained. ``beyond``: either longer, the grid
    without its trained part. ``both_beyond``: both longer. ``twice``: the published convention, up to twice the trained
    lengths, trained part and all; without a value where the grid ends before.
    """
    found = [cell for cell in cells if cell["samples"]]
    first, second = trained
    beyond = [(cell["first"] > first) + (cell["second"] > second) for cell in found]
    twice = [cell for cell in found if cell["first"] <= 2 * first and cell["second"] <= 2 * second]
    reached = any(c["first"] >= 2 * first for c in found) and any(c["second"] >= 2 * second for c in found)
    parts = {
        "whole": found,
        "trained": [cell for cell, longer in zip(found, beyond, strict=True) if longer == 0],
        "beyond": [cell for cell, longer in zip(found, beyond, strict=True) if longer > 0],
        "both_beyond": [cell for cell, longer in zip(found, beyond, strict=True) if longer == 2],
        "twice": twice if reached else [],
    }
    return {name: _mean(part) for name, part in parts.items()}


def _mean(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rates = [cell["correct"] / cell["samples"] for cell in cells]
    return {"value": statistics.fmean(rates) if rates else None, "cells": len(rates)}
