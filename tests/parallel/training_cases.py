"""What the ranks compute for the tests of whole runs: the real trainer, under DeepSpeed's engine or without one."""

import copy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from transformers import TrainingArguments, set_seed

from tape_ds import TapeForCausalLM
from tape_ds.data.dataset import IGNORED, collate
from tape_ds.parallel.layout import Layout
from tape_ds.training import methods, trained
from tape_ds.training.trained import Record
from tape_ds.training.trainer import TapeTrainer
from tests.integration.workers.common import arguments, end
from tests.model.helpers import randomised, tiny_config

GLOBAL_BATCH = 4
STEPS = 20


class Settings:
    """A method section: position updates, norms and embeddings; adapters without dropout."""

    train_position = train_norms = train_embeddings = True
    lora_r, lora_alpha, lora_dropout, lora_targets = 4, 8, 0.0, ["q_proj", "v_proj"]


class Rows(torch.utils.data.Dataset):
    """Rows of many lengths, of several documents, or with PoSE's jumps; row i depends on i alone."""

    def __init__(self, pose: bool, steps: int):
        self.pose = pose
        self.steps = steps

    def __len__(self) -> int:
        return self.steps * GLOBAL_BATCH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        length = 13 - index % 4
        ids = torch.randint(3, 61, (length,), generator=torch.Generator().manual_seed(index))
        places, documents, labels = torch.arange(length), torch.zeros(length, dtype=torch.int32), ids.clone()
        if self.pose:
            places[length // 2 :] += 7 + index % 5
        else:
            documents[4 + index % 3 :] = 1
        labels[[0, 4 + index % 3]] = IGNORED
        if index % 3 == 0:
            labels[:8] = IGNORED  # a rank whose part has no target
        return {"input_ids": ids, "labels": labels, "position_ids": places, "document_ids": documents}


@dataclass(frozen=True)
class Plan:
    """One run."""

    size: int = 1
    """Processes that share rows."""
    stage: int | None = None
    """ZeRO's; None: without DeepSpeed."""
    encoding: str = "tape"
    method: str = "full"
    pose: bool = False
    checkpointing: bool = False
    steps: int = STEPS
    save_steps: int = 0


TOLERANCE = {"losses": 1e-6, "norms": 3e-6, "weights": 1e-5}
"""In fp32, relative, after 20 steps of AdamW; plain data parallelism under ZeRO leaves some 5e-7."""

PRODUCT = [
    Plan(size, stage, encoding, method, pose=method != "full", checkpointing=checkpointing)
    for size, stage, encoding, checkpointing in product((2, 4), (1, 2, 3), ("rope", "tape", "fire"), (False, True))
    for method in (("full", "tape+lora") if encoding == "tape" else ("full",))
]


def train(folder: str, plan: Plan, resume: str | None = None) -> dict[str, Any]:
    """Train; on rank 0, the loss and gradient norm of each step, what was logged beside them, and the weights."""
    world = distributed.get_world_size() if distributed.is_initialized() else 1
    layout = Layout(world, plan.size)
    set_seed(5)
    model = randomised(TapeForCausalLM(tiny_config("gqa", plan.encoding, tie_word_embeddings=True)))
    given = _arguments(Path(folder), plan, layout)
    prepared = methods.prepare(plan.method, model, Settings)
    trainer = TapeTrainer(
        record=Record(base="base", method=plan.method, names=prepared.names),
        tokens_per_step=GLOBAL_BATCH * 13,
        flops_per_token=1.0,
        layout=layout,
        model=prepared.model,
        args=given,
        train_dataset=Rows(plan.pose, plan.steps),
        data_collator=collate,
    )
    trainer.train(resume_from_checkpoint=resume)
    weights = trained.gather(trainer.model, list(prepared.names))
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    found = {
        "losses": [entry["loss"] for entry in logs],
        "norms": [entry["grad_norm"] for entry in logs],
        "flos": trainer.state.total_flos,
        "rows": trainer.get_total_train_batch_size(trainer.args),
        "weights": {name: copy.deepcopy(weight).float().numpy() for name, weight in weights.items()},
    }
    end(trainer)
    return found if world == 1 or distributed.get_rank() == 0 else {}


def _arguments(folder: Path, plan: Plan, layout: Layout) -> TrainingArguments:
    changes: dict[str, Any] = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": GLOBAL_BATCH // layout.data,
        "max_steps": plan.steps,
        "learning_rate": 3e-3,
        "adam_epsilon": 1e-4,  # else Adam's first steps make a full step of a gradient that is rounding alone
        "logging_nan_inf_filter": False,
        "gradient_checkpointing": plan.checkpointing,
        "save_strategy": "steps" if plan.save_steps else "no",
        "save_steps": plan.save_steps or 1,
    }
    if plan.stage is None:
        changes["deepspeed"] = None
    return arguments(folder, plan.stage or 0, **changes)


def furthest(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """How far two runs are apart, relative: in loss and norm at any step, and in the weights at the end (to the largest
    of each tensor)."""
    assert mine["weights"].keys() == other["weights"].keys()
    found = {
        name: max(abs(a / b - 1) for a, b in zip(mine[name], other[name], strict=True)) for name in ("losses", "norms")
    }
    pairs = [(mine["weights"][name], weight) for name, weight in other["weights"].items()]
    return found | {"weights": max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)}
