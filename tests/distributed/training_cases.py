"""What the ranks compute for the tests of whole runs: the real trainer, under DeepSpeed's engine or without one."""

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from deepspeed.module_inject.layers import set_autotp_mode
from deepspeed.runtime.tensor_parallel import init_utils
from deepspeed.utils import groups
from torch import distributed
from transformers import TrainingArguments, set_seed

from tape_ds import TapeForCausalLM
from tape_ds.checkpoint import saving, trained
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.config.sections import Memory, Optimization
from tape_ds.config.target_weights import TargetWeights
from tape_ds.data.left_context import left_context
from tape_ds.data.order import IGNORED, collate
from tape_ds.distributed import distributed_map
from tape_ds.distributed.layout import Layout
from tape_ds.methods.prepare import prepare_model
from tape_ds.training.callbacks import ApplyMemorySavings, AverageLast
from tape_ds.training.objective import Weighted
from tape_ds.training.trainer import TapeTrainer
from tests.distributed.covering import cover
from tests.integration.workers.common import arguments, end
from tests.models.helpers import randomised, tiny_config

GLOBAL_BATCH = 4
STEPS = 20


class Settings:
    """A method section: position updates, norms and embeddings; adapters without dropout."""

    train_position = train_norms = train_embeddings = True
    lora_r, lora_alpha, lora_dropout, lora_targets = 4, 8, 0.0, ["q_proj", "v_proj"]


class WithoutPosition(Settings):
    """Of a model whose encoding learns nothing."""

    train_position = False


class Sequences(torch.utils.data.Dataset):
    """Sequences of many lengths, of several documents, or with PoSE's jumps; sequence i depends on i alone."""

    def __init__(self, pose: bool, steps: int):
        self.pose = pose
        self.steps = steps

    def __len__(self) -> int:
        return self.steps * GLOBAL_BATCH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        length = 13 - index % 4
        ids = torch.randint(3, 61, (length,), generator=torch.Generator().manual_seed(index))
        places, documents, labels = (
            torch.arange(length),
            torch.zeros(length, dtype=torch.int32),
            ids.clone(),
        )
        if self.pose:
            places[length // 2 :] += 7 + index % 5
        else:
            documents[4 + index % 3 :] = 1
        labels[[0, 4 + index % 3]] = IGNORED
        if index % 3 == 0:
            labels[:8] = IGNORED  # a rank whose part has no target
        return {
            "input_ids": ids,
            "labels": labels,
            "position_ids": places,
            "document_ids": documents,
        }


SAVINGS = {
    "none": Memory(),
    "recomputed": Memory(),
    "offloaded": Memory(checkpoint_offload=True),
    "selective": Memory(checkpoint_layers="selective", checkpoint_offload=True),
    "tiles": Memory(checkpoint_offload=True, mlp_tiles=5),
}
"""Every block computed again; its inputs moved away meanwhile; not its cheap parts; its feed-forward in tiles."""


@dataclass(frozen=True)
class Plan:
    """One run."""

    share: str = "none"
    """What processes share beside ZeRO's shards: ``SP2``, tokens, by two; ``TP2``, heads and columns; ``none``."""
    stage: int | None = None
    """ZeRO's; None: without DeepSpeed."""
    encoding: str = "tape"
    heads: str = "gqa"
    method: str = "full"
    """``lora``: adapters, norms, embeddings and position updates, on PoSE's sequences; ``full``: all, on packed
    ones."""
    savings: str = "none"
    """A name of :data:`SAVINGS`."""
    weights: str = "equal"
    """Of targets: a value of the field ``target_weights``."""
    steps: int = STEPS
    save_steps: int = 0
    average: int = 0
    """Checkpoints whose mean the weights are in the end."""

    @property
    def pose(self) -> bool:
        """Whether sequences have jumps, not documents."""
        return self.method != "full"

    @property
    def numbers(self) -> "Plan":
        """The run of one process that computes the same."""
        same = ("encoding", "heads", "method", "weights", "steps", "save_steps", "average")
        return Plan(**{name: getattr(self, name) for name in same})

    def layout(self, world: int) -> Layout:
        """Who does what."""
        size = 1 if self.share == "none" else int(self.share[2:])
        return Layout(world, tensor=size) if self.share.startswith("T") else Layout(world, size)


TOLERANCE = {"losses": 1e-6, "norms": 3e-6, "weights": 1e-5}
"""In fp32, relative, after 20 steps of AdamW; plain data parallelism under ZeRO leaves some 5e-7."""

DIMENSIONS: dict[str, Sequence[Any]] = {
    "share": ("none", "SP2", "SP4", "TP2"),
    "stage": (1, 2, 3),
    "encoding": ("rope", "tape", "tape scale", "alibi"),
    "heads": ("mha", "gqa", "mqa"),
    "method": ("full", "lora"),
    "savings": ("none", "recomputed", "offloaded"),
}


def possible(values: Mapping[str, Any]) -> bool:
    """ZeRO-3 and pieces of a model are refused together."""
    return not (values["share"].startswith("TP") and values["stage"] == 3)


PAIRWISE = [Plan(**values) for values in cover(DIMENSIONS, possible)]
PRODUCT = [
    Plan(**values)
    for values in (
        dict(zip(DIMENSIONS, each, strict=True)) for each in product(*DIMENSIONS.values())
    )
    if possible(values)
]


def train(folder: str, plan: Plan, resume: str | None = None) -> dict[str, Any]:
    """Train; on rank 0, the loss and gradient norm of each step, what was logged beside them, and the weights."""
    world = distributed.get_world_size() if distributed.is_initialized() else 1
    layout = plan.layout(world)
    set_seed(5)
    model = randomised(
        TapeForCausalLM(tiny_config(plan.heads, plan.encoding, tie_word_embeddings=True))
    )
    given = _arguments(Path(folder), plan, layout)
    learns = plan.encoding.startswith("tape")
    method = plan.method if plan.method == "full" or not learns else "tape+lora"
    prepared = prepare_model(method, model, Settings if learns else WithoutPosition)
    trainer = TapeTrainer(
        record=TrainedRecord(base="base", method=method, names=prepared.names),
        tokens_per_step=GLOBAL_BATCH * 13,
        flops_per_token=1.0,
        layout=layout,
        optimization=Optimization(position_learning_rate="2x" if learns else None),
        model=prepared.model,
        args=given,
        train_dataset=Sequences(plan.pose, plan.steps),
        data_collator=functools.partial(collate, weigh=_weigh if plan.weights == "exact" else None),
        target_weights=TargetWeights(
            target_weights=plan.weights, longce_short=3, longce_stride=2, longce_most=1.2
        ),
    )
    trainer.add_callback(ApplyMemorySavings(SAVINGS[plan.savings]))
    if plan.average:
        trainer.add_callback(AverageLast(trainer, Path(given.output_dir), plan.average))
    with mock.patch.object(saving, "need", wraps=saving.need) as needed:
        trainer.train(resume_from_checkpoint=resume)
    weights = trained.gather(trainer.model, list(prepared.names))
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    found = {
        "losses": [entry["loss"] for entry in logs],
        "norms": [entry["grad_norm"] for entry in logs],
        "others": [[entry.get(name) for name in Weighted.names] for entry in logs],
        "flos": trainer.state.total_flos,
        "needed": [call.args[0] for call in needed.call_args_list],
        "sequences": trainer.get_total_train_batch_size(trainer.args),
        "weights": {
            name: copy.deepcopy(weight).float().numpy() for name, weight in weights.items()
        },
    }
    end(trainer)
    _forget_groups()
    return found if world == 1 or distributed.get_rank() == 0 else {}


def _weigh(documents: torch.Tensor) -> torch.Tensor:
    return 0.5 + left_context(documents) / 6


def _arguments(folder: Path, plan: Plan, layout: Layout) -> TrainingArguments:
    # one group of four would otherwise exchange everything four times a step
    sequences = 2 if layout.ways == 4 else 1
    changes: dict[str, Any] = {
        "per_device_train_batch_size": sequences,
        "gradient_accumulation_steps": GLOBAL_BATCH // (sequences * layout.data),
        "max_steps": plan.steps,
        "learning_rate": 3e-3,
        "adam_epsilon": 1e-4,  # else Adam's first steps make a full step of a gradient that is rounding alone
        "logging_nan_inf_filter": False,
        "gradient_checkpointing": plan.savings != "none",
        "save_strategy": "steps" if plan.save_steps else "no",
        "save_steps": plan.save_steps or 1,
    }
    if plan.stage is None:
        changes["deepspeed"] = None
    if layout.tensor > 1:
        changes["engine"] = {"tensor_parallel": {"autotp_size": layout.tensor}}
    return arguments(folder, plan.stage or 0, **changes)


def _forget_groups() -> None:
    """The engine keeps a job's groups for as long as its process lives, and what tp_model_init was given."""
    distributed_map.set_team_size(1)
    for name in (
        "_TENSOR_MODEL_PARALLEL_GROUP",
        "_MODEL_PARALLEL_GROUP",
        "_DATA_PARALLEL_GROUP",
        "mpu",
    ):
        setattr(groups, name, None)
    init_utils._TP_MODEL_INIT_ARGS = None
    set_autotp_mode(training=False)


def furthest(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """How far two runs are apart, relative: in loss and norm at any step, and in the weights at the end (to the largest
    of each tensor)."""
    assert mine["weights"].keys() == other["weights"].keys()
    found = {
        name: max(abs(a / b - 1) for a, b in zip(mine[name], other[name], strict=True))
        for name in ("losses", "norms")
    }
    pairs = [(mine["weights"][name], weight) for name, weight in other["weights"].items()]
    return found | {"weights": max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)}
