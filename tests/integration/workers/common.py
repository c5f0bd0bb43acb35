"""What the workers share: sequences, an engine's settings, and its orderly end, so that one process can hold
several."""

import argparse
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from transformers import TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from tape_ds.distributed.processes import leave_process_group
from tape_ds.training.environment import prepare_process

VOCABULARY, LENGTH = 61, 24


class Sequences(torch.utils.data.Dataset):
    """Fixed random sequences; sequence i depends on i alone."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        ids = torch.randint(
            0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index)
        )
        return {
            "input_ids": ids,
            "labels": ids.clone(),
            "position_ids": torch.arange(LENGTH),
            "document_ids": torch.zeros(LENGTH, dtype=torch.int32),
        }


def arguments(folder: Path, stage: int, **changes: Any) -> TrainingArguments:
    """A few steps of two sequences a rank on the CPU, under this ZeRO stage; nothing is too small to be sharded."""
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
        "train_sampling_strategy": "sequential",
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


def run_worker(compute: Callable[..., Any]) -> int:
    """A worker's ``main``: every rank computes, all or what ``--only`` names, and rank 0 writes what came of it into
    the folder of its command line; None is nothing to write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    known = parser.parse_args()
    folder = known.folder
    prepare_process()
    PartialState(cpu=True)
    outcomes = compute(folder) if known.only is None else compute(folder, known.only)
    if outcomes is not None and torch.distributed.get_rank() == 0:
        (folder / "outcomes.json").write_text(json.dumps(outcomes))
    leave_process_group()
    return 0
