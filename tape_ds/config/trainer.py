"""The trainer's fields: every field of transformers' TrainingArguments, with the types, defaults and facts of ours."""

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import Field

from tape_ds import checkpoint, fields, paths
from tape_ds.config import library
from tape_ds.errors import Problem, check_folder, did_you_mean
from tape_ds.fields import FIXED, RISKY, Section, rule

AUTO = "auto"
CAUTIOUS: dict[str, Any] = {
    "deepspeed": "zero3",
    "activation_checkpointing": True,
    "per_device_train_batch_size": 1,
}
"""Fields that a recipe may leave to the plan (:data:`AUTO`), with the values that need least memory; these hold until
the plan has chosen (:mod:`tape_ds.planning.recipe_job`), and where memory cannot be planned."""
ALIASES = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
    "resume": "resume_from_checkpoint",
}
"""Other names of fields, short or those of transformers before 5.23."""
COMPILED = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
"""Fields that are carried out here and not by transformers, see :mod:`tape_ds.methods.compiled_blocks`."""


@dataclass(frozen=True)
class Owned:
    """Fact of a field that must keep its default for a promise of this stack to hold."""

    reason: str
    remedy: str = "remove it"


_EVALUATION = Owned(
    "the launcher itself scores eval_data",
    "use eval_data and the other fields that begin with eval_",
)
_SHARDING = Owned("sharding is DeepSpeed's here", "choose a stage with deepspeed")
_SMALLER = "lower per_device_train_batch_size; accumulation follows"
_EXPORT = "export it afterwards: tape-ds export OUTPUT_DIR FOLDER --push NAME"
_OF_WORKERS = (
    "dataloader_prefetch_factor",
    "dataloader_persistent_workers",
    "dataloader_multiprocessing_context",
)
_Share = Annotated[float, Field(ge=0, lt=1), RISKY]
_Level = Literal["detail", "debug", "info", "warning", "error", "critical", "passive"]

if TYPE_CHECKING:

    class Library(Section):
        use_cpu: bool
        bf16_full_eval: bool
        fp16_full_eval: bool

    _Optimizer = str
    _Schedule = str
    _Saving = str
else:
    Library = library.training_arguments()
    _Optimizer, _Schedule, _Saving = map(
        library.choices, ("OptimizerNames", "SchedulerType", "SaveStrategy")
    )


class RecipeView(Protocol):
    """The parts of a recipe that rules of its sections may read."""

    given: frozenset[str]
    elsewhere: bool
    world_size: int
    deepspeed: dict[str, Any] | None
    model: Any
    data: Any
    scale: Any
    window: int
    trains: bool
    trains_positions: bool
    trainer: "Trainer"


class Trainer(Library):
    """Fields of transformers' TrainingArguments, with this stack's defaults."""

    global_batch_size: Annotated[int, FIXED] = fields.DERIVED
    """Sequences per optimizer step over all processes, the same whatever their number; default those that one backward
    pass of all processes takes. Gradient accumulation follows from it."""
    per_device_train_batch_size: Annotated[Annotated[int, Field(ge=1)] | Literal["auto"], RISKY] = 1
    """Sequences per process and backward pass; auto: as the plan chooses."""
    gradient_accumulation_steps: int = Field(1, ge=1)
    """Follows from global_batch_size."""
    max_steps: Annotated[int, RISKY] = -1
    """Optimizer steps of the run; -1: num_train_epochs decides."""
    num_train_epochs: Annotated[float, RISKY] = 3.0
    """Passes over the data, where max_steps is not given."""
    learning_rate: Annotated[float, Field(gt=0), RISKY] = 5e-5
    """Peak learning rate."""
    lr_scheduler_type: Annotated[_Schedule, RISKY] = "linear"
    """Schedule of the learning rate."""
    lr_scheduler_kwargs: Annotated[dict | None, RISKY] = None
    """Arguments of the schedule."""
    warmup_steps: Annotated[float, Field(ge=0), RISKY] = 0
    """Steps in which the learning rate rises from 0; below 1: that share of all steps."""
    optim: Annotated[_Optimizer, FIXED] = "adamw_torch_fused"
    """Optimizer."""
    optim_args: Annotated[str | None, FIXED] = None
    """Arguments of the optimizer, as name=value, name=value."""
    optim_target_modules: Annotated[str | list[str] | None, FIXED] = None
    """Modules that GaLore and APOLLO optimize."""
    weight_decay: Annotated[float, Field(ge=0), RISKY] = 0.0
    """Weight decay of matrices."""
    adam_beta1: _Share = 0.9
    """AdamW's first beta."""
    adam_beta2: _Share = 0.999
    """AdamW's second beta."""
    adam_epsilon: Annotated[float, Field(gt=0), RISKY] = 1e-8
    """AdamW's epsilon."""
    max_grad_norm: Annotated[float, Field(ge=0), RISKY] = 1.0
    """Norm that gradients are clipped to; 0: they are not."""
    neftune_noise_alpha: Annotated[float | None, RISKY] = None
    """Noise on embeddings (NEFTune)."""
    bf16: Annotated[bool, FIXED] = False
    """Train in bfloat16 with fp32 master weights."""
    fp16: Annotated[bool, FIXED] = False
    """Train in float16 with a loss scale."""
    tf32: Annotated[bool | None, RISKY] = None
    """TF32 for fp32 matrix products."""
    full_determinism: Annotated[bool, RISKY] = False
    """Deterministic kernels, slower."""
    activation_checkpointing: Annotated[bool | Literal["auto"] | None, RISKY] = None
    """Compute activations again in the backward instead of keeping them: see checkpoint_layers. auto: as the plan
    chooses; it chooses checkpoint_layers too where that is not given."""
    activation_checkpointing_kwargs: Annotated[dict | None, RISKY] = None
    """Arguments of torch.utils.checkpoint."""
    torch_compile: Annotated[bool, RISKY] = False
    """Compile the blocks; a model of transformers' own class as a whole."""
    torch_compile_backend: Annotated[str | None, RISKY] = None
    """torch.compile's backend."""
    torch_compile_mode: Annotated[str | None, RISKY] = None
    """torch.compile's mode."""
    torch_empty_cache_steps: int | None = Field(None, ge=1)
    """Empty the allocator's cache every so often."""
    deepspeed: str | dict | None = "zero3"
    """ZeRO by the name of a file in ds_configs (zero1, zero2, zero3, zero3_offload, ...), the path of a DeepSpeed JSON,
    or the JSON itself; null trains without DeepSpeed. auto: of zero1, zero2 and zero3 the one that the plan chooses
    (docs/memory.md)."""
    seed: Annotated[int, FIXED] = Field(42, ge=0, le=2**32 - 1)
    """Decides the initial weights, the sequences and their order."""
    output_dir: str | None = None
    """Folder of the run: checkpoints, log, results, trained weights. Default runs/RECIPE."""
    resume_from_checkpoint: str | bool | None = None
    """Go on from a checkpoint: its path, true for the newest of output_dir, auto for the newest if there is one. Short:
    --resume."""
    save_strategy: _Saving = "steps"
    """steps, or no: nothing is saved."""
    save_steps: float = Field(500, gt=0)
    """Steps between checkpoints; below 1: that share of all steps."""
    save_total_limit: int | None = Field(None, ge=1)
    """Checkpoints that are kept; null: all."""
    logging_steps: float = Field(10, gt=0)
    """Steps between lines of the log."""
    logging_first_step: bool = True
    """Log the first step as well."""
    report_to: str | list[str] | None = "none"
    """Trackers of experiments: tensorboard, wandb, ...; none, all."""
    run_name: str | None = None
    """Name of the run for trackers."""
    per_device_eval_batch_size: int = Field(1, ge=1)
    """Sequences per process and batch of a score."""
    dataloader_num_workers: int = Field(0, ge=0)
    """Processes that read ahead."""
    dataloader_prefetch_factor: int | None = Field(None, ge=1)
    """Batches that each of them reads ahead."""
    ddp_timeout: int = Field(1800, gt=0)
    """Seconds that a collective may take."""
    accelerator_config: dict | None = None
    """Accelerate's settings."""
    log_level: _Level = "passive"
    """Level of transformers' log."""
    log_level_replica: _Level = "warning"
    """The same on other ranks."""

    # owned: another value would break a promise of this stack
    remove_unused_columns: Annotated[
        bool, Owned("position_ids and document_ids must reach the model")
    ] = False
    logging_nan_inf_filter: Annotated[bool, Owned("a NaN must show in the log")] = False
    train_sampling_strategy: Annotated[str, Owned("seed decides the data order", "change seed")] = (
        "sequential"
    )
    data_seed: Annotated[
        int | None, Owned("seed decides the data order as well", "change seed")
    ] = None
    save_only_model: Annotated[
        bool, Owned("only whole checkpoints resume", "use OUTPUT_DIR/trained")
    ] = False
    save_on_each_node: Annotated[
        bool, Owned("a checkpoint is one folder, on a disk that all nodes see")
    ] = False
    enable_jit_checkpoint: Annotated[
        bool, Owned("signals are answered by a committed checkpoint anyway")
    ] = False
    restore_callback_states_from_checkpoint: Annotated[
        bool, Owned("a checkpoint holds our own state")
    ] = False
    ignore_data_skip: Annotated[bool, Owned("a resumed run would see its first samples again")] = (
        False
    )
    average_tokens_across_devices: Annotated[
        bool, Owned("the loss must not depend on the processes")
    ] = True
    auto_find_batch_size: Annotated[bool, Owned("global_batch_size must hold", _SMALLER)] = False
    use_cache: Annotated[bool, Owned("training keeps no key/value cache")] = False
    use_liger_kernel: Annotated[
        bool, Owned("it patches transformers' own model classes", "use liger")
    ] = False
    label_smoothing_factor: Annotated[float, Owned("smoothing needs all logits at once")] = 0.0
    eval_strategy: Annotated[str, _EVALUATION] = "no"
    eval_on_start: Annotated[bool, _EVALUATION] = False
    load_best_model_at_end: Annotated[bool, _EVALUATION] = False
    fsdp: Annotated[Any, _SHARDING] = None
    fsdp_config: Annotated[Any, _SHARDING] = None
    parallelism_config: Annotated[Any, Owned("it is an object, which a recipe cannot hold")] = None
    push_to_hub: Annotated[
        bool, Owned("a run saves what it trained, not always a whole model", _EXPORT)
    ] = False
    hub_token: Annotated[
        str | None, Owned("a recipe is stored with every result", "export HF_TOKEN")
    ] = None

    def value(self, name: str) -> Any:
        """Return the value of a field, the cautious one while it is left to the plan."""
        value = getattr(self, name)
        if name in CAUTIOUS and value == AUTO:
            return CAUTIOUS[name]
        return value

    @property
    def micro_batch(self) -> int:
        """Sequences per process and backward pass."""
        return int(self.value("per_device_train_batch_size"))

    @property
    def recomputes(self) -> bool:
        """Whether the backward computes activations again."""
        return bool(self.value("activation_checkpointing"))

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return paths.of(str(self.output_dir))

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments that are given or that this stack sets, without ``deepspeed`` and
        ``gradient_accumulation_steps``; transformers has its defaults for the others."""
        own = {
            name: getattr(self, name)
            for name in FIELDS
            if name in self.model_fields_set | OURS.keys()
        }
        if own.get("activation_checkpointing") not in (None, False, AUTO):
            options = own.get("activation_checkpointing_kwargs") or {}
            own["activation_checkpointing_kwargs"] = {"use_reentrant": False} | options
        return {
            name: value
            for name, value in own.items()
            if name not in ("deepspeed", "gradient_accumulation_steps")
        }

    @rule("max_steps", "num_train_epochs", "warmup_steps")
    def _duration(self, recipe: RecipeView) -> Iterator[Problem]:
        if not recipe.trains:
            return
        steps = self.max_steps
        epochs = None
        if "num_train_epochs" in self.model_fields_set:
            epochs = self.num_train_epochs
        if steps > 0 and epochs is not None and epochs > 0:
            wrong = f"max_steps = {steps} decides, this would be ignored"
            remedy = "remove it, or max_steps: -1"
            yield Problem("num_train_epochs", epochs, wrong, remedy)
        if steps <= 0 and (epochs is None or epochs <= 0):
            yield Problem(
                "max_steps", steps, "no length of training", "give max_steps or num_train_epochs"
            )
        if 0 < steps < self.warmup_steps:
            wrong = f"longer than the run, max_steps = {steps}"
            yield Problem(
                "warmup_steps",
                self.warmup_steps,
                wrong,
                "give fewer, or a share of the run (below 1)",
            )

    @rule("dataloader_num_workers", "torch_compile")
    def _values(self, recipe: RecipeView) -> Iterator[Problem]:
        # a field that is wrong by itself has its default here, which is never refused
        if self.save_strategy not in ("steps", "no"):
            wrong = "a run is one pass over its samples, with no evaluation in between"
            remedy = "save_strategy: steps (with save_steps), or save_strategy: no"
            yield Problem("save_strategy", self.save_strategy, wrong, remedy)
        if recipe.trains and self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):
            wrong = "it follows an evaluation during training, and a run has none"
            yield Problem(
                "lr_scheduler_type", self.lr_scheduler_type, wrong, "give another, such as cosine"
            )
        for name in ("logging_steps", "save_steps"):
            value = getattr(self, name)
            if value > 1 and value != int(value):
                yield Problem(
                    name, value, "not a whole number", "give one, or a share of the run (below 1)"
                )
        for name in _OF_WORKERS if self.dataloader_num_workers == 0 else ():
            if value := getattr(self, name):
                remedy = "remove it, or dataloader_num_workers: 1"
                yield Problem(name, value, "no worker: dataloader_num_workers = 0", remedy)
        unread = () if self.torch_compile or not recipe.trains else COMPILED
        for name in unread:
            if value := getattr(self, name):
                remedy = "add torch_compile: true, or remove it"
                yield Problem(name, value, "is not read without torch_compile", remedy)
        if self.bf16 and self.fp16:
            yield Problem("fp16", True, "bf16 is on as well", "bf16: false, or fp16: false")
        reentrant = (self.activation_checkpointing_kwargs or {}).get("use_reentrant", False)
        if reentrant is not False:
            wrong = "reentrant checkpointing cuts the gradients of the position updates"
            yield Problem(
                "activation_checkpointing_kwargs.use_reentrant", reentrant, wrong, "give false"
            )
        for name in ("split_batches", "dispatch_batches"):
            if (self.accelerator_config or {}).get(name):
                wrong = "each process reads its own samples, chosen by their number"
                yield Problem(f"accelerator_config.{name}", True, wrong, "remove it")
        modules = {
            "azure_ml": ("azureml",),
            "flyte": ("flytekit",),
            "tensorboard": ("tensorboard", "tensorboardX"),
        }
        known = library.trackers()
        for name in [self.report_to] if isinstance(self.report_to, str) else self.report_to or []:
            if name not in ("none", "all", *known):
                yield Problem(
                    "report_to", name, "unknown tracker", did_you_mean(name, ["none", *known])
                )
            elif name in known and not any(
                map(importlib.util.find_spec, modules.get(name, (name,)))
            ):
                remedy = f"pip install {name.replace('_', '-')}, or report_to: none"
                yield Problem("report_to", name, "its package is not installed", remedy)

    @rule("resume_from_checkpoint", "output_dir")
    def _folders(self, recipe: RecipeView) -> Iterator[Problem]:
        given = self.resume_from_checkpoint
        folder = self.folder
        yield from check_folder("output_dir", folder)
        if given not in (None, True, False, "auto") and not os.path.isdir(paths.of(str(given))):
            found = (
                [place.name for place in checkpoint.numbered(folder)]
                if os.path.isdir(folder)
                else []
            )
            remedy = "give a folder checkpoint-N, or auto for the newest"
            if found:
                remedy = f"{folder} has {', '.join(found)}"
            yield Problem("resume_from_checkpoint", given, "no such folder", remedy)


FIELDS: Mapping[str, Any] = {
    name: field
    for name, field in Trainer.model_fields.items()
    if name not in ("global_batch_size", "local_rank")
}
"""Every field of TrainingArguments, except ``local_rank``, which the launcher sets."""


def library_default(name: str) -> Any:
    """Return what transformers takes for a field that is not given."""
    return Library.model_fields.get(name, FIELDS[name]).default


OURS: Mapping[str, Any] = {
    name: field.default
    for name, field in FIELDS.items()
    if name in ("seed", "save_strategy", "report_to") or field.default != library_default(name)
}
"""Defaults that a run stores with its result: all that differ from transformers', and three that do not."""
OWNED: Mapping[str, Owned] = {
    name: mark
    for name, field in FIELDS.items()
    for mark in field.metadata
    if isinstance(mark, Owned)
}
