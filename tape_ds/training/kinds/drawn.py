"""What every run has whose sequences are drawn as they are needed: a new model, all of it trained, on sequences of
their own lengths. What is asked of it afterwards, each kind says: :mod:`.arithmetic`, :mod:`.addressing`."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tape_ds.data.drawn import DrawnSequences
from tape_ds.model import positions
from tape_ds.recipe.arithmetic import ArithmeticRecipe
from tape_ds.training.run import Run


@dataclass(frozen=True, kw_only=True)
class DrawnRun(Run):
    """A run that trains a model from nothing on drawn sequences."""

    recipe: ArithmeticRecipe
    sequences: DrawnSequences
    held_out: Sequence[Any]
    """What the trained model is asked; empty: nothing."""

    @staticmethod
    @abstractmethod
    def sequences_of(recipe: ArithmeticRecipe, samples: int, seed: int) -> DrawnSequences:
        """Return the sequences that a recipe asks for."""

    @staticmethod
    @abstractmethod
    def held_out_of(recipe: ArithmeticRecipe) -> Sequence[Any]:
        """Return what a recipe has the trained model asked."""

    @staticmethod
    @abstractmethod
    def fingerprints_of(recipe: ArithmeticRecipe) -> dict[str, str]:
        """Fingerprint of the sequences, by task."""

    @abstractmethod
    def describe_held_out(self) -> str:
        """Return what is asked, in words, where anything is."""

    @property
    def mean_tokens(self) -> int:
        """Tokens of a sequence, in the mean over the first thousand."""
        return round(self.sequences.mean_tokens)

    def outline(self) -> dict[str, str]:
        """Model, encoding, task and lengths, and what is asked."""
        config = self.config
        sizes = f"{config.num_hidden_layers} layers of {config.hidden_size:,}, {config.num_attention_heads} heads"
        return {
            "model": f"new, {self.parameter_counts[0] / 1e6:,.1f} M parameters, {sizes}",
            "encoding": positions.described(config),
            "data": self.recipe.outline()["data"],
            "held out": self.describe_held_out() if self.held_out else "nothing",
        }

    def fingerprints(self) -> dict[str, str]:
        """Of the sequences."""
        return self.fingerprints_of(self.recipe)
