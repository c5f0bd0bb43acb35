"""Sequences that are drawn when they are asked for: sequence ``i`` of a run is a pure function of (seed, i), nothing is
stored.

What a sequence is, each kind of task says: :mod:`.arithmetic.sequences`, :mod:`.addressing.sequences`.
"""

import functools
import random
from abc import ABC, abstractmethod

import torch

_MEASURED = 1024
"""Sequences over which the mean length is taken."""


class DrawnSequences(torch.utils.data.Dataset, ABC):
    """A run's sequences; items as :class:`tape_ds.data.scrolls.sequences.AnswerSequences` gives them.

    Python's own generator is used for its speed; the same numbers come from the same seed as long as its ``randrange``
    stays what it is (3.2 to this day).
    """

    def __init__(self, *, samples: int, seed: int):
        """Serve ``samples`` sequences."""
        self.samples = samples
        self.seed = seed

    @abstractmethod
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """The tensors of a sequence."""

    def __len__(self) -> int:
        return self.samples

    def generator(self, index: int) -> random.Random:
        """Return what sequence ``index`` is drawn from.

        Raises:
            IndexError: there is no such sequence.
        """
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        return random.Random(self.seed << 64 | index)

    @functools.cached_property
    def mean_tokens(self) -> float:
        """Tokens of a sequence, in the mean over the first thousand."""
        some = range(min(_MEASURED, self.samples))
        return sum(len(self[index]["input_ids"]) for index in some) / max(1, len(some))
