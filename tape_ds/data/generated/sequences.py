"""Training sequences drawn on demand: sequence ``i`` of a run is a pure function of (seed, i)."""

import functools
import random

import torch

from tape_ds.data.generated.task import GeneratedSample, Size, Task, ids_of
from tape_ds.data.order import RunSamples, item

# sequences over which the mean length is taken
_MEASURED = 1024


class GeneratedSequences(RunSamples):
    """A run's sequences; the targets are the answers. ``trained`` is as in :meth:`Task.training_size`."""

    def __init__(self, task: Task, trained: Size, *, samples: int, seed: int, step_sequences: int):
        self.task = task
        self.trained = trained
        self.samples = samples
        self.seed = seed
        self.step_sequences = step_sequences
        self._ids = ids_of(task.vocabulary)

    def sample(self, index: int) -> GeneratedSample:
        """Return sequence ``index`` in words."""
        # Python's generator for its speed; its `randrange` has given the same numbers since 3.2
        generator = random.Random(self.seed << 64 | index)
        step_seed = f"length {self.seed} {index // self.step_sequences}"
        size = self.task.training_size(self.trained, generator, step_seed)
        return self.task.draw(generator, size, test=False)

    def draw(self, index: int) -> dict[str, torch.Tensor]:
        sample = self.sample(index)
        return item([self._ids[word] for word in sample.words], list(sample.answers))

    @functools.cached_property
    def mean_tokens(self) -> float:
        some = range(min(_MEASURED, self.samples))
        return sum(len(self[index]["input_ids"]) for index in some) / max(1, len(some))
