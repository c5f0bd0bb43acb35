"""Scoring the answers to held-out questions around a run: before the first step and after the last."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState

from tape_ds import storage
from tape_ds.parallel.shared_work import share_out
from tape_ds.scoring import answers
from tape_ds.scoring.answers import AnswerLoss, Asked

BEFORE, AFTER = "before", "after"


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
            write(self.file, read(self.file) | {when: found})


def write(path: Path, found: dict[str, AnswerLoss]) -> None:
    """Store scores as JSON."""
    storage.write_json(path, {when: each.to_dict() for when, each in found.items()})


def read(path: Path) -> dict[str, AnswerLoss]:
    """Scores stored by :func:`write`; empty when there are none."""
    if not path.exists():
        return {}
    return {when: AnswerLoss.from_dict(each) for when, each in json.loads(path.read_text()).items()}
