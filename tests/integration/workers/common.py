"""What the workers share: rows, an engine's settings, and its orderly end, so that one process can hold several."""

import gc
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from transformers import TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

VOCABULARY, LENGTH = 61, 24


class Rows(torch.utils.data.Dataset):
    """Fixed random rows; row i depends on i alone."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {
            "input_ids": ids,
            "labels": ids.clone(),
            "position_ids": torch.arange(LENGTH),
            "document_ids": torch.zeros(LENGTH, dtype=torch.int32),
        }


def arguments(folder: Path, stage: int, **changes: Any) -> TrainingArguments:
    """A few steps of two rows a rank on the CPU, under this ZeRO stage; nothing is too small to be sharded."""
    engine = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    fixed = {
        "output_dir": str(folder),
        "deepspeed": engine | changes.pop("engine", {}),
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }
    return TrainingArguments(**(fixed | changes))


def end(trainer: Any) -> None:
    """Free an engine and forget it: the next one starts as if it were the first. Drop every name of it afterwards."""
    trainer.accelerator.free_memory()
    gc.collect()
    unset_hf_deepspeed_config()
    for state in (AcceleratorState, GradientState):
        state._reset_state()
