"""Run by two ranks: a few steps under ZeRO-1 and ZeRO-3 with each memory saving and without, and one run recorded.

Writes one JSON with what the parent test asserts; rank 0 speaks for both.
"""

import hashlib
import sys
from pathlib import Path

import torch
from transformers import set_seed

from tape_ds.checkpoint import trained
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.config import deepspeed_config
from tape_ds.config.sections import Memory, Profile
from tape_ds.data.order import collate
from tape_ds.methods.prepare import prepare
from tape_ds.models import convert
from tape_ds.models.loading import extendable
from tape_ds.training.callbacks import ApplyMemorySavings
from tape_ds.training.profiling import StepProfiler
from tape_ds.training.trainer import TapeTrainer
from tests.integration.workers.common import LENGTH, Sequences, arguments, end, run_worker
from tests.integration.workers.engine import Settings, base_folder

SAVINGS = {
    "nothing": None,
    "moved": Memory(checkpoint_offload=True),
    "selective, moved": Memory(checkpoint_layers="selective", checkpoint_offload=True),
    "selective": Memory(checkpoint_layers="selective"),
    "tiles": Memory(checkpoint_offload=True, mlp_tiles=5),
}
STEPS = 3


def train(folder: Path, base: Path, engine: int | str, saving: str, profile: Profile | None = None) -> dict:
    """One engine from birth to death: a ZeRO stage, or a file of ds_configs."""
    stage = engine if isinstance(engine, int) else int(engine[4])
    changes = {} if isinstance(engine, int) else {"deepspeed": deepspeed_config.read(engine, [])}
    memory, output = SAVINGS[saving], folder / f"{engine}-{saving}"
    plan = arguments(
        output,
        stage,
        max_steps=STEPS,
        save_strategy="no",
        gradient_checkpointing=memory is not None,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        **changes,
    )
    set_seed(5)
    model = convert.load(base, convert.tape_config(extendable.read(base)), dtype=torch.float32)
    prepared = prepare("tape", model, Settings)
    trainer = TapeTrainer(
        record=TrainedRecord(base=str(base), method="tape", names=prepared.names),
        tokens_per_step=4 * LENGTH,
        flops_per_token=1.0,
        model=prepared.model,
        args=plan,
        train_dataset=Sequences(),
        data_collator=collate,
    )
    savings = None if memory is None else ApplyMemorySavings(memory)
    if savings is not None:
        trainer.add_callback(savings)
    if profile is not None:
        trainer.add_callback(StepProfiler(trainer, profile, output))
    trainer.train()
    after = trained.gather(trainer.model, list(prepared.names))
    whole = b"".join(after[name].float().cpu().numpy().tobytes() for name in sorted(after))
    norms = {name: weight.double().norm().item() for name, weight in after.items()}
    offload = None if savings is None else savings.savings.offload
    outcome = {
        "engine": engine,
        "saving": saving,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "weights": hashlib.sha256(whole).hexdigest(),
        "norms": norms,
        "moved": None if offload is None else [offload.moved_bytes, offload.restored_bytes, offload.held_bytes],
        "kept": None if savings is None else savings.savings.recompute.kept,
    }
    end(trainer)
    return outcome


def everything(folder: Path) -> list[dict]:
    """All combinations, one after another."""
    base = base_folder(folder)
    outcomes = [train(folder, base, stage, saving) for stage in (1, 3) for saving in SAVINGS]
    outcomes.append(train(folder, base, "zero2_offload", "nothing"))
    recorded = Profile(profile=True, profile_start=2, profile_steps=2, profile_ranks=[0, 1])
    outcomes.append(train(folder, base, 3, "selective, moved", recorded) | {"recorded": True})
    return outcomes


def main() -> int:
    """See :func:`everything`."""
    return run_worker(everything)


if __name__ == "__main__":
    sys.exit(main())
