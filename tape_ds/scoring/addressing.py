"""How many answers are right in tests of addressing, and how sure that is.

Answers stand in the sequences, and each is right where it is the most likely word behind the words before it, right
answers among them: what is asked is whether the place is found, each time anew, and one pass over a sequence tells it
of them all.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from tape_ds.data.addressing import sequences
from tape_ds.data.addressing.lengths import Test
from tape_ds.data.arithmetic.vocabulary import ids_of
from tape_ds.scoring import exact_match
from tape_ds.scoring.each import Each, in_turn
from tape_ds.scoring.exact_match import Marked

Z = 1.959964
"""Deviations of a normal distribution that hold 95 % of it."""


@dataclass(frozen=True)
class Answered:
    """What came of one test."""

    length: int
    kind: str
    """See :class:`tape_ds.data.addressing.lengths.Test`."""
    rows: int  # the name in stored results
    answers: int
    """In all sequences."""
    correct: int
    chance: float
    """Share of a uniform guess, 0 to 1."""

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
        """The test's, in words."""
        return f"length {self.length:,}{', ' if self.kind else ''}{self.kind}"

    def __str__(self) -> str:
        low, high = self.interval
        rest = f"[{low:.1%}, {high:.1%}] of {self.answers:,}, chance {self.chance:.1%}"
        return f"{self.share:.1%} {rest}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the ``share`` and its ``interval``."""
        return asdict(self) | {"share": self.share, "interval": list(self.interval)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Answered":
        """Return the inverse of :meth:`to_dict`."""
        return cls(**{name: value for name, value in values.items() if name not in ("share", "interval")})


def ask(
    model: nn.Module,
    test: Test,
    samples: int,
    seed: int,
    *,
    each: Each = in_turn,
    batch_tokens: int = exact_match.BATCH_TOKENS,
) -> Answered:
    """Return what ``model`` makes of the first ``samples`` sequences of a test.

    Args:
        model: as :func:`tape_ds.scoring.exact_match.right` takes it.
        test: its sequences are held out, see :func:`tape_ds.data.addressing.sequences.held_out`.
        samples: 1 or more.
        seed: of the sequences.
        each, batch_tokens: as there.

    Raises:
        ValueError: as there.
    """
    ids = ids_of(test.task.vocabulary)
    marked = []
    for sequence in sequences.held_out(test.task, test.length, samples, seed):
        targets_T = torch.zeros(len(sequence.words), dtype=torch.bool)
        targets_T[list(sequence.answers)] = True
        marked.append(Marked(torch.tensor([ids[word] for word in sequence.words]), targets_T))
    found = exact_match.foreseen(model, marked, each=each, batch_tokens=batch_tokens)
    correct = sum(sum(answers) for answers in found)
    return Answered(test.length, test.kind, samples, sum(map(len, found)), correct, test.task.chance)
