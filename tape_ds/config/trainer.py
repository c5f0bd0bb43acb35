"""The trainer's half of a recipe: every field of transformers' TrainingArguments, and what this stack makes of them.

Some would break a promise of this stack if they differed (:data:`OWNED`); giving them the value they have anyway is no
contradiction.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import Field

from tape_ds import checkpoint, fields, paths
from tape_ds.config import library_fields
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import rule

DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "logging_steps": 10,
    "logging_first_step": True,
    "save_strategy": "steps",
    "report_to": "none",
    "seed": 42,
    "deepspeed": "zero3",
}
"""Where we differ from transformers, without insisting."""

AUTO = "auto"
CAUTIOUS: dict[str, Any] = {
    "deepspeed": "zero3",
    "activation_checkpointing": True,
    "per_device_train_batch_size": 1,
}
"""Fields that a recipe may leave to the plan (:data:`AUTO`), with the values that need least memory. They hold where
memory cannot be planned, and until the plan has chosen (:mod:`tape_ds.planning.recipe_job`)."""


class Owned(NamedTuple):
    """A field whose value follows from how this stack works."""

    value: Any
    reason: str
    remedy: str = "remove it"


_NO_EVALUATION = "the launcher itself scores eval_data"

OWNED: dict[str, Owned] = {
    "remove_unused_columns": Owned(False, "position_ids and document_ids must reach the model"),
    "logging_nan_inf_filter": Owned(False, "a NaN must show in the log"),
    "train_sampling_strategy": Owned(
        "sequential", "the data order follows from the seed and the sample's number", "change seed for another order"
    ),
    "data_seed": Owned(None, "seed decides the data order as well", "change seed"),
    "save_only_model": Owned(
        False, "a checkpoint is what a run can go on from", "take the weights from OUTPUT_DIR/trained"
    ),
    "save_on_each_node": Owned(False, "a checkpoint is one folder, on a disk that all nodes see"),
    "enable_jit_checkpoint": Owned(False, "signals are answered by a committed checkpoint anyway"),
    "restore_callback_states_from_checkpoint": Owned(False, "a checkpoint holds what its run needs to go on"),
    "ignore_data_skip": Owned(False, "a resumed run would see its first samples again"),
    "average_tokens_across_devices": Owned(True, "the loss must not depend on the number of processes"),
    "auto_find_batch_size": Owned(
        False, "global_batch_size would no longer hold", "lower per_device_train_batch_size; accumulation follows"
    ),
    "use_cache": Owned(False, "training keeps no key/value cache"),
    "use_liger_kernel": Owned(False, "it patches transformers' own model classes, not this model", "use liger"),
    "label_smoothing_factor": Owned(0.0, "smoothing reads all logits at once, which this loss never holds"),
    "eval_strategy": Owned("no", _NO_EVALUATION, "use eval_data and the other fields that begin with eval_"),
    "eval_on_start": Owned(False, _NO_EVALUATION, "use eval_data and the other fields that begin with eval_"),
    "load_best_model_at_end": Owned(False, _NO_EVALUATION),
    "fsdp": Owned(None, "sharding is DeepSpeed's here", "choose a stage with deepspeed"),
    "fsdp_config": Owned(None, "sharding is DeepSpeed's here", "choose a stage with deepspeed"),
    "parallelism_config": Owned(None, "it is an object, which a recipe cannot hold"),
    "push_to_hub": Owned(
        False,
        "a run saves what it trained, and only a whole model is worth a page of its own",
        "export it afterwards: tape-ds export OUTPUT_DIR FOLDER --push NAME",
    ),
    "hub_token": Owned(None, "a recipe is stored with every result, and a token must not be", "export HF_TOKEN"),
}

REMOVED: dict[str, str] = {
    "batch_size": "global_batch_size",
    "block_size": "window",
    "deepspeed_config": "deepspeed",
    "evaluation_strategy": "eval_data (the launcher scores this held-out text itself)",
    "group_by_length": "nothing: sequences have one length",
    "local_rank": "nothing: the launcher says it to each process",
    "logging_dir": "nothing: logs go to output_dir (for TensorBoard export TENSORBOARD_LOGGING_DIR)",
    "lr": "learning_rate",
    "no_cuda": "use_cpu",
    "num_epochs": "num_train_epochs",
    "overwrite_output_dir": "another output_dir, or resume_from_checkpoint to go on",
    "rope_scaling": "rope_parameters",
    "rope_scaling_factor": "rope_parameters.factor",
    "rope_scaling_type": "rope_parameters.rope_type",
    "save_safetensors": "nothing: safetensors is the only format",
    "torch_dtype": "bf16 or fp16",
    "use_flash_attention_2": "attention_backend",
    "use_flash_attn": "attention_backend",
    "use_full_attn": "attention_backend",
    "use_mps_device": "nothing: the device is found",
    "warmup_ratio": "warmup_steps (a number below 1 is the share of all steps)",
}
"""Names of older transformers and of related training scripts, with what stands for them today; those that stand for
one launcher's own fields are that launcher's (``Recipe.FORMER``)."""

RENAMED = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
    "resume": "resume_from_checkpoint",
}
"""Short, or deprecated there and renamed without a change of meaning: both names are read, one is used."""

_OF_WORKERS = ("dataloader_prefetch_factor", "dataloader_persistent_workers", "dataloader_multiprocessing_context")
_POSITIVE, _NOT_NEGATIVE, _COUNT, _SHARE = {"gt": 0}, {"ge": 0}, {"ge": 1}, {"ge": 0, "lt": 1}
_BOUNDS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("learning_rate", "adam_epsilon", "logging_steps", "save_steps", "ddp_timeout"), _POSITIVE),
    **dict.fromkeys(("weight_decay", "max_grad_norm", "warmup_steps", "dataloader_num_workers"), _NOT_NEGATIVE),
    **dict.fromkeys(("per_device_eval_batch_size", "save_total_limit", "gradient_accumulation_steps"), _COUNT),
    **dict.fromkeys(("dataloader_prefetch_factor", "torch_empty_cache_steps"), _COUNT),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), _SHARE),
    "seed": {"ge": 0, "le": 2**32 - 1},
}


def library_default(name: str) -> Any:
    """Return what transformers takes for a field that is not set."""
    return _ENTRIES[name].default


_ENTRIES = library_fields.trainer(tuple(RENAMED.items()))
_OWNED_DEFAULTS = {
    name: owned.value for name, owned in OWNED.items() if name in _ENTRIES and owned.value != library_default(name)
}
_OURS = DEFAULTS | _OWNED_DEFAULTS
_TYPES: dict[str, Any] = {
    "activation_checkpointing": bool | None | Literal["auto"],
    "per_device_train_batch_size": Annotated[int, Field(ge=1)] | Literal["auto"],
}
_Fields = library_fields.section(
    "TrainerFields",
    {
        name: (
            _TYPES.get(name, entry.type),
            Field(_OURS.get(name, entry.default), description=entry.help, **_BOUNDS.get(name, {})),
        )
        for name, entry in _ENTRIES.items()
    },
)
FIELDS: Mapping[str, Any] = _Fields.model_fields
"""Every field of TrainingArguments, but for ``local_rank``, which the launcher owns."""


class Whole(Protocol):
    """What the rules of a section may ask of the recipe that it belongs to."""

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
    trainer_value: Callable[[str], Any]


class Trainer(_Fields):  # type: ignore[misc, valid-type]
    """Fields of transformers' TrainingArguments, with this stack's defaults."""

    global_batch_size: int = fields.DERIVED
    """Sequences per optimizer step over all processes, the same whatever their number; default those that one backward
    pass of all processes takes. Gradient accumulation follows from it."""

    def value(self, name: str) -> Any:
        """Return the value of a field, the cautious one while it is left to the plan."""
        value = getattr(self, name)
        return CAUTIOUS[name] if name in CAUTIOUS and value == AUTO else value

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments that are given, or that this stack sets, without ``deepspeed`` and
        ``gradient_accumulation_steps``; transformers knows its defaults of the others."""
        own = {name: getattr(self, name) for name in FIELDS if name in {*self.model_fields_set, *_OURS, "output_dir"}}
        if own.get("activation_checkpointing") not in (None, False, AUTO):
            options = own.get("activation_checkpointing_kwargs") or {}
            own["activation_checkpointing_kwargs"] = {"use_reentrant": False} | options
        return {name: value for name, value in own.items() if name not in ("deepspeed", "gradient_accumulation_steps")}

    @rule("max_steps", "num_train_epochs", "warmup_steps")
    def _duration(self, whole: Whole) -> Iterator[Problem]:
        if not whole.trains:
            return
        steps, epochs = self.max_steps, self.num_train_epochs if "num_train_epochs" in self.model_fields_set else None
        if steps > 0 and epochs is not None and epochs > 0:
            wrong = f"max_steps = {steps} decides, this would be ignored"
            remedy = "remove one of the two (--max_steps -1 takes a recipe's back)"
            yield Problem("num_train_epochs", epochs, wrong, remedy)
        if steps <= 0 and (epochs is None or epochs <= 0):
            remedy = "give max_steps or num_train_epochs"
            yield Problem("max_steps", steps, "nothing says how long to train", remedy)
        if 0 < steps < self.warmup_steps:
            wrong = f"longer than the run, max_steps = {steps}"
            yield Problem("warmup_steps", self.warmup_steps, wrong, "give fewer, or a share of the run (below 1)")

    @rule("save_strategy")
    def _saving(self, whole: Whole) -> Iterator[Problem]:
        """The trainer sees a run as one epoch, and never evaluates within it."""
        if self.save_strategy not in ("steps", "no"):
            wrong = "a run is one pass over its samples, with no evaluation in between"
            yield Problem("save_strategy", self.save_strategy, wrong, "give steps (and save_steps), or no")

    @rule("lr_scheduler_type")
    def _schedule(self, whole: Whole) -> Iterator[Problem]:
        if whole.trains and self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):
            wrong = "it follows an evaluation during training, and a run has none"
            yield Problem("lr_scheduler_type", self.lr_scheduler_type, wrong, "give another, such as cosine")

    @rule("logging_steps", "save_steps")
    def _intervals(self, whole: Whole) -> Iterator[Problem]:
        for name in ("logging_steps", "save_steps"):
            value = getattr(self, name)
            if value > 1 and value != int(value):
                yield Problem(name, value, "not a whole number", "give one, or a share of the run (below 1)")

    @rule("dataloader_num_workers", *_OF_WORKERS)
    def _workers(self, whole: Whole) -> Iterator[Problem]:
        for name in _OF_WORKERS if self.dataloader_num_workers == 0 else ():
            if getattr(self, name):
                remedy = "remove it, or give dataloader_num_workers"
                yield Problem(name, getattr(self, name), "there are no workers: dataloader_num_workers = 0", remedy)

    @rule("bf16", "fp16", "bf16_full_eval", "fp16_full_eval")
    def _precision(self, whole: Whole) -> Iterator[Problem]:
        for kind in ("", "_full_eval"):
            if getattr(self, f"bf16{kind}") and getattr(self, f"fp16{kind}"):
                yield Problem(f"fp16{kind}", True, f"bf16{kind} is on as well", "keep one of the two")

    @rule("activation_checkpointing", "activation_checkpointing_kwargs")
    def _checkpointing(self, whole: Whole) -> Iterator[Problem]:
        given = self.activation_checkpointing_kwargs or {}
        if given.get("use_reentrant", False) is not False:
            wrong = "reentrant checkpointing cuts the gradients of the position updates"
            yield Problem("activation_checkpointing_kwargs.use_reentrant", given["use_reentrant"], wrong, "give false")

    @rule("accelerator_config")
    def _accelerator(self, whole: Whole) -> Iterator[Problem]:
        for name in ("split_batches", "dispatch_batches"):
            if (self.accelerator_config or {}).get(name):
                wrong = "each process reads its own samples, chosen by their number"
                yield Problem(f"accelerator_config.{name}", True, wrong, "remove it")

    @rule("report_to")
    def _trackers(self, whole: Whole) -> Iterator[Problem]:
        known = library_fields.trackers()
        for name in [self.report_to] if isinstance(self.report_to, str) else self.report_to or []:
            if name in ("none", "all"):
                continue
            if name not in known:
                yield Problem("report_to", name, "unknown tracker", did_you_mean(name, ["none", *known]))
            elif not any(importlib.util.find_spec(module) for module in _MODULES.get(name, (name,))):
                remedy = f"pip install {name.replace('_', '-')}, or report_to: none"
                yield Problem("report_to", name, "its package is not installed", remedy)

    @rule("output_dir")
    def _output(self, whole: Whole) -> Iterator[Problem]:
        folder = paths.of(self.output_dir).absolute()
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            yield Problem("output_dir", self.output_dir, f"{existing} is a file", "give another folder")
        elif not os.access(existing, os.W_OK | os.X_OK):
            remedy = "give another folder, or change its rights"
            yield Problem("output_dir", self.output_dir, f"{existing} is not writable", remedy)

    @rule("resume_from_checkpoint", "output_dir")
    def _resume(self, whole: Whole) -> Iterator[Problem]:
        """A path; true, the newest checkpoint of output_dir; auto, the same if there is one; false for none."""
        given = self.resume_from_checkpoint
        if given in (None, True, False, "auto") or os.path.isdir(paths.of(given)):
            return
        folder = paths.of(self.output_dir)
        found = [place.name for place in checkpoint.numbered(folder)] if os.path.isdir(folder) else []
        remedy = f"{folder} has {', '.join(found)}" if found else "give a folder checkpoint-N, or auto for the newest"
        yield Problem("resume_from_checkpoint", given, "no such folder", remedy)


_MODULES = {
    "azure_ml": ("azureml",),
    "flyte": ("flytekit",),
    "tensorboard": ("tensorboard", "tensorboardX"),
}
"""Packages of trackers that are not called as they are."""


def owned_problem(name: str, value: Any) -> Iterator[Problem]:
    """Why a value of an owned field cannot be."""
    if name not in OWNED or value == OWNED[name].value or (OWNED[name].value is None and value in ("", {}, [])):
        return
    owned = OWNED[name]
    shown = "null" if owned.value is None else str(owned.value).lower()
    yield Problem(name, value, f"must stay {shown}: {owned.reason}", owned.remedy)


def rename(given: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """``given`` under today's names (:data:`RENAMED`); both names with different values contradict each other."""
    renamed = {name: value for name, value in given.items() if name not in RENAMED}
    for old, new in RENAMED.items():
        if given.get(old) is None:
            continue
        if given.get(new) is not None and given[new] != given[old]:
            wrong = f"{new} = {given[new]!r} says otherwise"
            problems.append(Problem(old, given[old], wrong, f"keep {new}, today's name"))
        renamed.setdefault(new, given[old])
    return renamed
