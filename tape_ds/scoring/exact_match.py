"""Exact match in one forward pass: whether greedy decoding would write a given answer.

Greedy decoding writes exactly the reference answer if and only if each of its tokens, EOS included, is the most likely
one after the prompt and the tokens before it: up to the first wrong token both have read the same. So one forward pass
over prompt and answer finds what token-by-token decoding would. In a sequence with several answers each is judged
after the correct earlier ones.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tape_ds.data.generated.task import GeneratedSample, Test, ids_of, label
from tape_ds.mappings import without
from tape_ds.scoring import Each, in_turn
from tape_ds.scoring.losses import bare, decoder_of, evaluating, head_of

BATCH_TOKENS = 8192
"""Tokens that are read at once, and whose logits exist at once."""
Z = 1.959964
"""97.5 % quantile of the normal distribution."""

Batch = list[tuple[Tensor, Tensor]]
"""Ids and whether they are answers, [T] each."""


def judge(
    model: nn.Module,
    vocabulary: Sequence[str],
    samples: Sequence[GeneratedSample],
    *,
    each: Each = in_turn,
    batch_tokens: int = BATCH_TOKENS,
) -> list[list[bool]]:
    """Return for each answer of each sample, in order, whether it is the most likely token after those before it.

    Args:
        model: see :func:`tape_ds.scoring.losses.target_losses`; causal, so that padding at the end changes nothing.
        vocabulary: the words in the order of their ids.
        samples: batched by length.
        each: see :data:`tape_ds.scoring.Each`. A batch calls the model and its output head once.
        batch_tokens: of a batch, padding included; a longer sequence is a batch by itself.
    """
    causal_lm = bare(model)
    head = head_of(causal_lm)
    ids = ids_of(vocabulary)
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    # sequences of one length need no padding
    order = sorted(range(len(samples)), key=lambda place: len(samples[place].words))
    batches: list[Batch] = []
    for place in order:
        words = samples[place].words
        if not batches or (len(batches[-1]) + 1) * len(words) > batch_tokens:
            batches.append([])
        answers_T = torch.zeros(len(words), dtype=torch.bool)
        answers_T[list(samples[place].answers)] = True
        batches[-1].append((torch.tensor(list(map(ids.__getitem__, words))), answers_T))

    @torch.no_grad()
    def judge_batch(batch: Batch) -> list[list[bool]]:
        # T: tokens of the longest, N: answers of all sequences
        ids_BT, answers_BT = map(pad, zip(*batch, strict=True))
        device = causal_lm.get_input_embeddings().weight.device
        with evaluating(causal_lm):
            hidden_BTD = decoder_of(causal_lm)(
                input_ids=ids_BT.to(device), use_cache=False
            ).last_hidden_state
            # the token before an answer predicts it; the first is never one
            before_BT = answers_BT.roll(-1, dims=1)
            logits_NV = head(hidden_BTD[before_BT.to(device)])
        correct_N = logits_NV.argmax(dim=-1).cpu() == ids_BT[answers_BT]
        return list(map(Tensor.tolist, correct_N.split(answers_BT.sum(dim=1).tolist())))

    correct = itertools.chain.from_iterable(each(judge_batch, batches))
    by_place = dict(zip(order, correct, strict=True))
    return [by_place[place] for place in range(len(samples))]


@dataclass(frozen=True)
class AnswerCount:
    """Result of one test of addressing, whose answers count one by one."""

    length: int
    kind: str
    """See :class:`tape_ds.data.generated.task.Test`."""
    rows: int
    """Sequences; the name in stored results."""
    answers: int
    """In all sequences."""
    correct: int
    chance: float | None
    """Share that uniform guesses get right, 0 to 1."""

    @classmethod
    def of(cls, test: Test, judged: Sequence[Sequence[bool]]) -> "AnswerCount":
        """Count the answers of a test as :func:`judge` judged them."""
        answers = sum(map(len, judged))
        correct = sum(map(sum, judged))
        return cls(test.size[0], test.kind, len(judged), answers, correct, test.task.chance)

    @property
    def share(self) -> float:
        return self.correct / self.answers

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share, with the sequences as the sample: answers of one are not independent."""
        share = self.share
        square = Z * Z / self.rows
        middle = (share + square / 2) / (1 + square)
        variance = share * (1 - share) / self.rows + square / (4 * self.rows)
        reach = Z * math.sqrt(variance) / (1 + square)
        return middle - reach, middle + reach

    @property
    def label(self) -> str:
        return label((self.length,), self.kind)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.share:.1%} [{low:.1%}, {high:.1%}] of {self.answers:,}, chance {self.chance:.1%}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share, "interval": list(self.interval)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AnswerCount":
        # they follow from the others
        return cls(**without(values, ("share", "interval")))


def means(cells: Iterable[Mapping[str, Any]], trained: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the means of a grid, for a model trained on operands of up to ``trained`` tokens.

    A quarter of a grid of twice the trained lengths is trained, so a model that has learned its training lengths and
    nothing beyond reaches 25 % over the whole grid. Hence these parts: ``whole``, every cell; ``trained``, no operand
    longer than trained; ``beyond``, one or both longer; ``both_beyond``; and ``twice``, the published convention, up to
    twice the trained lengths, trained part included, without a value if the grid is smaller.

    A cell has the lengths of its operands, ``first`` and ``second``, its ``samples`` (0: the cell is left out), and the
    number of them that were ``correct``. All cells weigh the same. A mean has a ``value`` from 0 to 1, None without
    cells, and the number of its ``cells``.
    """
    first, second = trained
    parts: dict[str, list[float]] = {}
    for name in ("whole", "trained", "beyond", "both_beyond", "twice"):
        parts[name] = []
    longest = (0, 0)
    for cell in cells:
        if not cell["samples"]:
            continue
        rate = cell["correct"] / cell["samples"]
        parts["whole"].append(rate)
        longer = (cell["first"] > first) + (cell["second"] > second)
        parts["beyond" if longer else "trained"].append(rate)
        if longer == 2:
            parts["both_beyond"].append(rate)
        if cell["first"] <= 2 * first and cell["second"] <= 2 * second:
            parts["twice"].append(rate)
        longest = (max(longest[0], cell["first"]), max(longest[1], cell["second"]))
    # a smaller grid would be compared with published means of longer operands
    if longest[0] < 2 * first or longest[1] < 2 * second:
        parts["twice"] = []
    summary = {}
    for name, rates in parts.items():
        summary[name] = {"value": statistics.fmean(rates) if rates else None, "cells": len(rates)}
    return summary
