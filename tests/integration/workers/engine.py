"""Run by two ranks: trains a tiny model for a few steps under every ZeRO stage, checkpointing on or off.

Writes one JSON with what the parent test asserts; rank 0 speaks for both, after both agreed.
"""

import sys
from pathlib import Path

import torch
from accelerate.state import PartialState
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

from tape_ds.checkpoint import trained
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.config.sections import Optimization
from tape_ds.data.order import collate
from tape_ds.methods.distillation import Teacher
from tape_ds.methods.prepare import prepare_model
from tape_ds.models import convert
from tape_ds.models.loading import extendable
from tape_ds.training.trainer import TapeTrainer
from tests.integration.workers.common import (
    LENGTH,
    VOCABULARY,
    Sequences,
    arguments,
    end,
    run_worker,
)

LAYOUTS = [(0, True), (1, False), (2, True), (3, False), (3, True)]
"""ZeRO's stage, and whether blocks are computed again."""


class Settings:
    """A method section: position updates, norms and embeddings."""

    train_position = train_norms = train_embeddings = True
    lora_r, lora_alpha, lora_dropout, lora_targets = 4, 8, 0.0, ["q_proj", "v_proj"]


def base_folder(folder: Path) -> Path:
    """A tiny random Llama with grouped heads, saved once by rank 0."""
    base = folder / "base"
    if PartialState().is_main_process:
        torch.manual_seed(7)
        config = LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            tie_word_embeddings=True,
            initializer_range=0.2,
        )
        LlamaForCausalLM(config).save_pretrained(base)
    PartialState().wait_for_everyone()
    return base


def train(
    folder: Path,
    base: Path,
    stage: int,
    checkpointing: bool,
    method: str,
    bf16: bool,
    special: str = "",
) -> dict:
    """One engine from birth to death; returns what happened to its parameters."""
    optimizer = {
        "type": "AdamW",
        "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True},
    }
    # else the trainer makes it: they are to agree
    engine = {"optimizer": optimizer} if checkpointing else {}
    plan = arguments(
        folder / f"run-{stage}-{checkpointing}-{method}-{bf16}",
        stage,
        engine=engine,
        max_steps=4,
        weight_decay=0.3,
        lr_scheduler_type="polynomial",  # reads its start from the optimizer's defaults; an engine's has none
        bf16=bf16,
        save_strategy="steps",
        save_steps=2,
        gradient_checkpointing=checkpointing,
    )
    set_seed(5)
    native = convert.tape_config(extendable.read(base), position_encoding="rope")
    config = (
        native
        if method == "lora"
        else convert.tape_config(extendable.read(base), position_encoding="tape")
    )
    if method == "lora":
        Settings.train_position = False
    model = convert.load(base, config, dtype=torch.bfloat16 if bf16 else torch.float32)
    everything = [name for name, _ in model.named_parameters()]
    fresh = trained.gather(model, everything)
    prepared = prepare_model(method, model, Settings)
    Settings.train_position = True
    record = TrainedRecord(base=str(base), method=method, names=prepared.names)
    trainer = TapeTrainer(
        record=record,
        teacher=Teacher(convert.load(base, native), LENGTH // 2, 0.25)
        if special == "distilled"
        else None,
        optimization=Optimization(position_learning_rate=None if method == "lora" else "3x"),
        tokens_per_step=4 * LENGTH,
        flops_per_token=1.0,
        model=prepared.model,
        args=plan,
        train_dataset=Sequences(),
        data_collator=collate,
    )
    before = trained.gather(trainer.model, [name for name, _ in trainer.model.named_parameters()])
    half_way = Path(plan.output_dir) / "checkpoint-2"
    trainer.train(resume_from_checkpoint=str(half_way) if special == "resumed" else None)
    after = trained.gather(trainer.model, [name for name, _ in trainer.model.named_parameters()])
    moved = sorted(name for name in after if not torch.equal(after[name], before[name]))
    bare = trainer.model.get_base_model() if method == "lora" else trainer.model
    distinct = {}
    for length in (8192, 131072):
        start = bare.model.encoding.start(torch.arange(length)[None, :, None])[0, 0]
        # torch.unique sorts rows, which takes a second
        distinct[str(length)] = len({row.tobytes() for row in start.float().numpy()})
    lines = [line for line in trainer.state.log_history if "loss" in line]
    outcome = {
        "stage": stage,
        "checkpointing": checkpointing,
        "method": method,
        "bf16": bf16,
        "trainable": sorted(record.names),
        "moved": moved,
        "fresh_zero": sorted(n for n, t in fresh.items() if not t.any()),
        "fresh_std": {n: t.float().std().item() for n, t in fresh.items() if ".position." in n},
        "distinct": distinct,
        "lines": lines,
        "losses": [line["loss"] for line in lines],
        "groups": [
            (group["initial_lr"], group["weight_decay"]) for group in trainer.optimizer.param_groups
        ],
        "special": special,
        "dtype": str(next(bare.parameters()).dtype),
    }
    end(trainer)
    return outcome


def everything(folder: Path) -> list[dict]:
    """All plans, one after another."""
    base = base_folder(folder)
    plans = [(stage, checkpointing, "tape", False) for stage, checkpointing in LAYOUTS]
    plans += [(3, True, "tape", True), (3, True, "lora", True), (3, True, "full", False)]
    plans += [(1, False, "tape", False, "resumed"), (2, True, "tape", False, "resumed")]
    plans += [(3, True, "lora", True, "resumed"), (3, True, "full", False, "resumed")]
    plans += [(2, False, "tape", False, "distilled")]
    return [train(folder, base, *plan) for plan in plans]


def main() -> int:
    """See :func:`everything`."""
    return run_worker(everything)


if __name__ == "__main__":
    sys.exit(main())
