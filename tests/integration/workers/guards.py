"""Run by two ranks: a loss that is NaN on the second rank alone, under every ZeRO stage, in fp32 or bf16.

Writes one JSON with what the parent test asserts; rank 0 speaks for both, after both agreed.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, set_seed

from tape_ds import TapeForCausalLM
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.config.sections import Safety
from tape_ds.data.order import collate
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.methods.prepare import prepare_model
from tape_ds.resilience import guards
from tape_ds.resilience.guards import StoppedByGuard
from tape_ds.training.callbacks import Progress
from tape_ds.training.trainer import TapeTrainer
from tests.integration.workers.common import (
    LENGTH,
    VOCABULARY,
    Sequences,
    arguments,
    end,
    run_worker,
)
from tests.methods.test_methods import settings
from tests.models.helpers import tiny_config

STEPS, BAD, LIMIT = 6, (2, 4, 5), 2
"""Steps planned; those in which the second rank counts wrong, from 1; so many of them in a row end the run."""
ENGINES = [(0, False), (0, True), (1, False), (2, True), (3, False)]
"""ZeRO's stage, and whether in bf16."""
OPTIMIZER = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True}}


class Poisoned(TapeTrainer):
    """The second rank's loss is not a number in the bad steps; the first rank's is fine."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The loss, or NaN."""
        loss = super().compute_loss(*args, **kwargs)
        poisoned = self.rank_sync.rank == 1 and self.state.global_step + 1 in BAD
        return loss * float("nan") if poisoned else loss


class Weights(TrainerCallback):
    """What this rank holds of the weights, before the first step and after each (ZeRO-3: its shards)."""

    def __init__(self) -> None:
        self.held: list[list[torch.Tensor]] = []

    def on_train_begin(self, *args: Any, model: Any, **kwargs: Any) -> None:
        """Before the first step."""
        self.held.append(
            [getattr(each, "ds_tensor", each).detach().clone() for each in model.parameters()]
        )

    def on_step_end(self, *args: Any, model: Any, **kwargs: Any) -> None:
        """After each."""
        self.on_train_begin(model=model)

    def moved(self) -> list[bool]:
        """Whether each step changed any of them."""
        return [not all(map(torch.equal, new, old)) for old, new in itertools.pairwise(self.held)]

    def finite(self) -> bool:
        """Whether all of them are numbers after the last step."""
        return all(bool(torch.isfinite(each).all()) for each in self.held[-1])


def train(folder: Path, stage: int, bf16: bool) -> dict[str, Any]:
    """One engine from birth to death; returns what became of its numbers."""
    output = folder / f"run-{stage}-{bf16}"
    plan = arguments(
        output,
        stage,
        engine={"optimizer": OPTIMIZER},
        per_device_train_batch_size=1,
        max_steps=STEPS,
        bf16=bf16,
        weight_decay=0.1,
    )
    set_seed(5)
    model = TapeForCausalLM(tiny_config(vocab_size=VOCABULARY)).to(
        torch.bfloat16 if bf16 else torch.float32
    )
    prepared = prepare_model("full", model, settings())
    trainer = Poisoned(
        record=TrainedRecord(base="base", method="full", names=prepared.names),
        tokens_per_step=2 * LENGTH,
        flops_per_token=1.0,
        safety=Safety(nonfinite_limit=LIMIT),
        model=prepared.model,
        args=plan,
        train_dataset=Sequences(),
        data_collator=collate,
    )
    weights = Weights()
    trainer.add_callback(weights)
    trainer.add_callback(Progress(trainer, output / "metrics.jsonl"))
    stopped = None
    try:
        trainer.train()
    except StoppedByGuard as error:
        stopped = str(error)
    own = {"finite": weights.finite(), "moved": weights.moved(), "stopped": stopped}
    outcome = {
        "stage": stage,
        "bf16": bf16,
        "ranks": RankSync().objects(own),
        "protects_itself": guards.protects_itself(trainer.model_wrapped),
        "skipped": trainer.skipped_steps,
        "steps": trainer.state.global_step,
        "output": str(output),
    }
    end(trainer)
    return outcome


def everything(folder: Path) -> list[dict]:
    """All combinations, one after another."""
    return [train(folder, stage, bf16) for stage, bf16 in ENGINES]


def main() -> int:
    """See :func:`everything`."""
    return run_worker(everything)


if __name__ == "__main__":
    sys.exit(main())
