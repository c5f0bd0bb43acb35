"""Run by two ranks: a new tiny model of every encoding, trained a few steps under ZeRO-1 and, sharded, under ZeRO-3.

Writes one JSON with the losses and the parameters that moved, which the parent test compares.
"""

import sys
from pathlib import Path

import torch
from transformers import set_seed

from tape_ds import encodings
from tape_ds.checkpoint import trained
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.data.order import collate
from tape_ds.methods import init_weights
from tape_ds.methods.prepare import prepare_model
from tape_ds.training.trainer import TapeTrainer
from tests.integration.workers.common import LENGTH, Sequences, arguments, end, run_worker
from tests.models.helpers import tiny_config

ENCODINGS = [
    *encodings.available(),
    "tape separate",
    "tape vector",
    "tape flattened",
    "tape from alibi",
    "tape abacus",
    "tape unit",
]
"""Every encoding, each of TAPE's other kinds of parameters and state, and an encoding inside another."""


def train(folder: Path, encoding: str, stage: int) -> dict:
    """One engine from birth to death."""
    # Rotations that begin alike leave the feed-forward nothing to mix: its last gradients are more than rounding in the
    # fourth step.
    steps = 4 if encoding == "tape unit" else 2
    plan = arguments(folder / "run", stage, max_steps=steps, gradient_checkpointing=stage == 3)
    set_seed(5)
    model = init_weights.build(tiny_config(encoding=encoding), 5, torch.float32)
    names = [name for name, _ in model.named_parameters()]
    before = trained.gather(model, names)
    prepared = prepare_model("full", model, None)
    trainer = TapeTrainer(
        record=TrainedRecord(base=None, method="full", names=prepared.names),
        tokens_per_step=4 * LENGTH,
        flops_per_token=1.0,
        model=prepared.model,
        args=plan,
        train_dataset=Sequences(),
        data_collator=collate,
    )
    set_seed(6)  # for the encodings that draw in training
    trainer.train()
    after = trained.gather(trainer.model, names)
    outcome = {
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "still": sorted(name for name in after if torch.equal(after[name], before[name])),
        "start": {name: float(tensor.double().sum()) for name, tensor in before.items()},
    }
    end(trainer)
    return outcome


def everything(folder: Path, only: list[str]) -> dict[str, dict]:
    """These encodings under both stages."""
    return {name: {stage: train(folder, name, stage) for stage in (1, 3)} for name in only}


def main() -> int:
    """See :func:`everything`."""
    return run_worker(everything)


if __name__ == "__main__":
    sys.exit(main())
