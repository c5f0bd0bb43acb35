"""What every fine-tuning run has: a whole model, sequences in which answers alone are targets, held-out answers to
score.

What it reads, each kind says: :mod:`.finetuning` the questions of SCROLLS, :mod:`.chat` conversations.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerState

from tape_ds import storage
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.data.chat.sequences import CutConversations
from tape_ds.data.scrolls.sequences import AnswerSequences, CutText
from tape_ds.errors import Problem
from tape_ds.parallel.distributed_map import share_out
from tape_ds.recipe.finetuning import FinetuningRecipe
from tape_ds.scoring import answers
from tape_ds.scoring.answers import AnswerLoss, Asked
from tape_ds.training import tables
from tape_ds.training.kinds.extension import base_path
from tape_ds.training.run import Run

SCORES = "results/answers.json"
BEFORE, AFTER = "before", "after"

Cut = CutText | CutConversations


class AnswerScores(TrainerCallback):
    """Scores reference answers; results go to ``file``. A resumed run keeps what its first part found before."""

    def __init__(self, asked: Sequence[Asked], file: Path):
        self.asked = asked
        self.file = file

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Score the model as it came; scores of an earlier run in this folder go."""
        if state.global_step > 0:
            return
        if state.is_world_process_zero:
            self.file.unlink(missing_ok=True)
        self._score(kwargs["model"], BEFORE, state)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Score the fine-tuned model."""
        self._score(kwargs["model"], AFTER, state)

    def _score(self, model: Any, when: str, state: TrainerState) -> None:
        if state.is_world_process_zero:
            print(f"scoring {len(self.asked):,} answers {when} training", flush=True)
        found = answers.score(model, self.asked, each=share_out)
        if state.is_world_process_zero:
            scores = read_scores(self.file) | {when: found}
            storage.write_json(self.file, {name: each.to_dict() for name, each in scores.items()})


def read_scores(path: Path) -> dict[str, AnswerLoss]:
    """Stored scores; empty when there are none."""
    plain = json.loads(path.read_text()) if path.exists() else {}
    return {when: AnswerLoss.from_dict(each) for when, each in plain.items()}


@dataclass(frozen=True, kw_only=True)
class Finetuning(Run):
    """A run that fine-tunes a whole model on answers."""

    SERVING: ClassVar[type[AnswerSequences]] = AnswerSequences
    """Serves the sequences that :meth:`tokenized` returns."""

    recipe: FinetuningRecipe
    sequences: AnswerSequences
    asked: list[Asked]
    """Held-out prompts with their answers."""
    cut: Mapping[str, Cut]
    """What did not fit, by split."""

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
    def tokenized(recipe: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[Dataset, list[Asked], Mapping[str, Cut]]:
        """Return the sequences that are trained on, ``asked`` and ``cut``.

        Raises:
            UserError: the data.
        """

    @abstractmethod
    def describe_data(self) -> dict[str, str]:
        """Return ``data`` and ``held out``, in words."""

    @property
    def record(self) -> TrainedRecord:
        """Every parameter is trained, so the folder is a whole model; the base says what it was."""
        return TrainedRecord(base=base_path(self.recipe.model.model), method="full", names=self.names)

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
            "encoding": f"{config.position_encoding} {getattr(config, 'position_options', None) or ''}".rstrip(),
            **self.describe_data(),
            **{f"cut, {name}": str(cut) for name, cut in self.cut.items()},
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
