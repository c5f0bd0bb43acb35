"""A model as a command finds it, with the facts that a test gives."""

from dataclasses import dataclass, field
from typing import Any

import torch

from tape_ds.scoring import models


@dataclass
class Found:
    """Stands for :class:`tape_ds.scoring.models.FoundModel`; counts how often it is loaded."""

    model: Any
    """Its ``tokenizer`` is the found model's."""
    known_length: int = 512
    position_limit: int | None = None
    config: object = None
    name_or_path: str = "a/model"
    record: None = None
    loads: list = field(default_factory=list)
    device = torch.device("cpu")

    def about(self):
        return {
            "address": self.name_or_path,
            "sha256": "0" * 64,
            "native_length": self.known_length,
        }

    def tokenizer(self):
        return self.model.tokenizer

    def load(self):
        self.loads.append(1)
        return self.model


def asker(command, monkeypatch, folder):
    """Return what runs a command on a model, its results in ``folder``, and gives the exit code and what was found."""

    def run(model, *words, **facts):
        found = Found(model, **facts)
        monkeypatch.setattr(models, "find", lambda options, problems=(): found)
        return command.main(["a/model", "--output", str(folder), *words]), found

    return run
