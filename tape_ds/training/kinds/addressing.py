"""A run on a task of addressing: sequences of several lengths, and how many answers are right at each length of a
test."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from tape_ds.data.addressing import sequences
from tape_ds.data.addressing.lengths import Test
from tape_ds.data.addressing.sequences import AddressingSequences
from tape_ds.model.llama import evaluated_at
from tape_ds.parallel.distributed_map import share_out
from tape_ds.recipe.addressing import Addressing
from tape_ds.recipe.arithmetic import ArithmeticRecipe
from tape_ds.scoring import addressing
from tape_ds.scoring.addressing import Answered
from tape_ds.scoring.causal_lm import bare
from tape_ds.training import tables
from tape_ds.training.callbacks import ScoredAfter
from tape_ds.training.kinds.drawn import DrawnRun

SCORES = "results/addressing.json"
SEED = 0
"""Of the sequences of tests: those of every run."""


@dataclass(frozen=True, kw_only=True)
class AddressingRun(DrawnRun):
    """A run that trains a model from nothing to address."""

    held_out: list[Test]

    @staticmethod
    def sequences_of(recipe: ArithmeticRecipe, samples: int, seed: int) -> AddressingSequences:
        """Of the trained lengths."""
        asked, step = _asked(recipe), recipe.global_batch_size
        return AddressingSequences(asked.task, asked.trained, samples=samples, seed=seed, step_sequences=step)

    @staticmethod
    def held_out_of(recipe: ArithmeticRecipe) -> list[Test]:
        """Return every test of the recipe."""
        return _asked(recipe).tests if recipe.data.held_out_samples else []

    @staticmethod
    def fingerprints_of(recipe: ArithmeticRecipe) -> dict[str, str]:
        """Of the sequences of training."""
        asked = _asked(recipe)
        return {f"addressing:{asked.task.name}": sequences.fingerprint(asked.task, asked.trained)}

    def describe_held_out(self) -> str:
        """Return sequences of each test."""
        each = f"{self.recipe.data.held_out_samples:,} sequences of each that no sequence of training is"
        return f"{'; '.join(map(str, self.held_out))}: {each}"

    def scoring(self) -> list[TrainerCallback]:
        """Answers, where there are any to give."""
        if not self.held_out:
            return []
        samples = self.recipe.data.held_out_samples

        def ask(model: Any) -> list[dict[str, Any]]:
            found = []
            for test in self.held_out:
                with evaluated_at(bare(model), test.task.tokens(test.length)):
                    found.append(addressing.ask(bare(model), test, samples, SEED, each=share_out).to_dict())
            return found

        announcement = f"asking {samples:,} sequences of each of {len(self.held_out)} tests"
        return [ScoredAfter(announcement, ask, self.output / SCORES)]

    def figures(self) -> dict[str, Any]:
        """Return how many answers were right in each test."""
        found = read(self.output / SCORES) if self.held_out else []
        return {"addressing": [each.to_dict() for each in found]} if found else {}

    def show(self) -> None:
        """A line for each test."""
        found = read(self.output / SCORES) if self.held_out else []
        tables.print_rows({f"right at {each.label}": str(each) for each in found})


def read(path: Path) -> list[Answered]:
    """Stored scores; empty when there are none."""
    plain = json.loads(path.read_text()) if path.exists() else []
    return [Answered.from_dict(each) for each in plain]


def _asked(recipe: ArithmeticRecipe) -> Addressing:
    assert recipe.addressing is not None, "a run of arithmetic is another kind"
    return recipe.addressing
