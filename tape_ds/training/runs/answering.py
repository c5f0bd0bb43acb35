"""What every fine-tuning run has: a whole model, sequences in which answers alone are targets, held-out answers to
score.

What it reads, each kind says: :mod:`.finetuning` the questions of SCROLLS, :mod:`.chat` conversations.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainerCallback

from tape_ds import storage
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.chat.sequences import CutConversations
from tape_ds.data.order import AnswerSequences
from tape_ds.data.scrolls.sequences import CutText
from tape_ds.errors import Problem
from tape_ds import encodings
from tape_ds.distributed.distributed_map import rounds, distributed_map
from tape_ds.config.finetuning import FinetuningRecipe
from tape_ds.scoring import answers
from tape_ds.scoring.answers import AnswerLoss, Prompt
from tape_ds.training import tables
from tape_ds.training.callbacks import ScoredAround
from tape_ds.training.held_out import Variants
from tape_ds.training.run import Run

SCORES = "results/answers.json"
BEFORE, AFTER = "before", "after"

Cut = CutText | CutConversations


class AnswerScores(ScoredAround[AnswerLoss]):
    """Scores reference answers."""

    def __init__(self, asked: Sequence[Prompt], file: Path):
        super().__init__({BEFORE: None}, {AFTER: None}, file, read_scores, write_scores)
        self.questions = asked

    def announcement(self, variants: Variants) -> str:
        """How many, and when."""
        return f"scoring {len(self.questions):,} answers {', '.join(variants)} training"

    def tokens(self, model: Any, variants: Variants) -> int:
        """Return this rank's share of those of prompts and answers."""
        tokens, count = sum(one.input_ids_1T.shape[1] for one in self.questions), len(self.questions)
        return tokens * rounds(count) // count

    def measure(self, model: Any, variants: Variants) -> dict[str, AnswerLoss]:
        """Return the loss on all of them."""
        return {when: answers.score(model, self.questions, each=distributed_map) for when in variants}

    def asked(self, found: AnswerLoss) -> Any:
        """Return how many there were, and of how many tokens."""
        return found.examples, found.targets


def write_scores(path: Path, scores: Mapping[str, AnswerLoss]) -> None:
    """Store scores as JSON."""
    storage.write_json(path, {when: each.to_dict() for when, each in scores.items()})


def read_scores(path: Path) -> dict[str, AnswerLoss]:
    """Stored scores; empty when there are none."""
    plain = json.loads(path.read_text()) if path.exists() else {}
    return {when: AnswerLoss.from_dict(each) for when, each in plain.items()}


@dataclass(frozen=True, kw_only=True)
class Tokenized:
    """What a run reads of its data."""

    sequences: Dataset
    """Those that are trained on."""
    lengths: np.ndarray
    """Tokens of each text in them, int64 [n]: of sequences, or of the conversations that share them."""
    asked: list[Prompt]
    """Held-out prompts with their answers."""
    cut: Mapping[str, Cut]
    """What did not fit, by split."""
    ends: tuple[int, ...]
    """Tokens that end an answer."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Further lines of the outline."""
    decides: Mapping[str, Any] = field(default_factory=dict)
    """What else belongs to the run's identity."""


@dataclass(frozen=True, kw_only=True)
class Finetuning(Run):
    """A run that fine-tunes a whole model on answers."""

    SERVING: ClassVar[type[AnswerSequences]] = AnswerSequences
    """Serves the sequences that :meth:`tokenized` returns."""
    TEXTS: ClassVar[str] = "sequences"
    """What positions are counted in."""

    recipe: FinetuningRecipe
    sequences: AnswerSequences
    asked: list[Prompt]
    """Held-out prompts with their answers."""
    cut: Mapping[str, Cut]
    """What did not fit, by split."""
    notes: Mapping[str, str]
    """Further lines of the outline."""

    @staticmethod
    @abstractmethod
    def fingerprints_of(recipe: Any, *, held_out: bool) -> dict[str, str]:
        """Fingerprint of the data that a recipe trains on, and with ``held_out`` of those that it scores, by spec."""

    @staticmethod
    @abstractmethod
    def fit(recipe: Any, tokenizer: PreTrainedTokenizerBase) -> list[Problem]:
        """Make the model's tokenizer fit for the recipe's sequences; return why it cannot be."""

    @staticmethod
    def decides(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Return what decides the numbers of this kind of run beyond :mod:`tape_ds.training.identity`."""
        return {}

    @staticmethod
    @abstractmethod
    def tokenized(recipe: Any, tokenizer: PreTrainedTokenizerBase, day: date, bad_rows: BadRows) -> Tokenized:
        """Return what is read of the data; ``day`` is that of the run's first start.

        Raises:
            UserError: the data.
        """

    @abstractmethod
    def describe_data(self) -> dict[str, str]:
        """Return ``data`` and ``held out``, in words."""

    @property
    def mean_tokens(self) -> int:
        """Tokens of a sequence, in the mean over all."""
        return round(float(self.sequences.lengths.mean()))

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.sequences.lengths.max())

    def outline(self) -> dict[str, str]:
        """Model, encoding, sequences, what was cut, and what is scored."""
        config = self.config
        return {
            "model": f"{self.recipe.model.model}, {self.parameter_counts[0] / 1e6:,.1f} M parameters, "
            f"{config.max_position_embeddings:,} positions",
            "encoding": encodings.described(config),
            **self.describe_data(),
            **{f"cut, {name}": str(cut) for name, cut in self.cut.items()},
            **self.notes,
        }

    def scoring(self) -> list[TrainerCallback]:
        """Return the loss on held-out answers, where there are any."""
        return [AnswerScores(self.asked, self.output / SCORES)] if self.asked else []

    def figures(self) -> dict[str, Any]:
        """Return the loss on held-out answers, what was cut, and the tokens that were read, padding left out."""
        found = read_scores(self.output / SCORES) if self.asked else {}
        return {
            "tokens": self.sequences.tokens,
            "answer_loss": [{"when": when, **each.to_dict()} for when, each in found.items()],
            "cut": {name: asdict(cut) for name, cut in self.cut.items()},
        }

    def show(self) -> None:
        """A line for before and after."""
        found = read_scores(self.output / SCORES) if self.asked else {}
        template = "{0.nll:.3f} nats per token, {0.foreseen:.1%} of {0.targets:,} tokens foreseen"
        if found:
            tables.print_rows({f"answers {when}": template.format(each) for when, each in found.items()})

    def fingerprints(self) -> dict[str, str]:
        """Of all that is read."""
        return self.fingerprints_of(self.recipe, held_out=bool(self.asked))
