"""A recipe: everything that decides a run, typed and checked.

A recipe file is flat: this stack's own fields together with those of transformers' ``TrainingArguments``. Each launcher
has a kind of recipe, a subclass of :class:`Recipe` with its sections and rules; :mod:`.loading` makes one.
"""

import dataclasses
import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import yaml
from pydantic.fields import FieldInfo

from tape_ds import attention
from tape_ds.config import deepspeed_config, trainer
from tape_ds.config.files import Given
from tape_ds.config.reading import DocumentReading
from tape_ds.config.scale import Scale, check_groups
from tape_ds.config.sections import (
    Averaging,
    Memory,
    Optimization,
    Profile,
    Safety,
    Samples,
    learns,
)
from tape_ds.config.target_weights import TargetWeights
from tape_ds.config.trainer import Trainer
from tape_ds.distributed.layout import SEQUENCE, TENSOR, Layout
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.fields import Section, rule, run_rules
from tape_ds.methods import liger
from tape_ds.models.loading import known_config

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from tape_ds.config.method import MethodSection


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """The fields of every kind of recipe, each with its final value. A kind adds its sections."""

    LAUNCHER: ClassVar[str]
    """Stem of the launcher's file, the value of ``launcher`` in a recipe file."""
    DEFAULT: ClassVar[str]
    """The recipe without ``--recipe``."""
    SECTIONS: ClassVar[Mapping[str, type[Section]]] = {
        "optimization": Optimization,
        "weighting": TargetWeights,
        "safety": Safety,
        "averaging": Averaging,
        "scale": Scale,
        "memory": Memory,
        "profile": Profile,
        "samples": Samples,
    }
    """The sections of this stack's own fields; a kind's own come first."""
    STAND_INS: ClassVar[Mapping[str, Any]]
    """Values for fields that are missing or wrong, so that the rules which do not read them can still run."""
    FULL_ROWS: ClassVar[bool] = True
    """Whether every sequence fills the window; else a batch is as long as its longest sequence."""

    name: str
    """A path has its stem."""
    model: Any
    """The section about the model; every kind's has ``liger`` and ``attention_backend``."""
    data: Any
    optimization: Optimization
    weighting: TargetWeights
    safety: Safety
    averaging: Averaging
    scale: Scale
    memory: Memory
    profile: Profile
    samples: Samples
    trainer: Trainer
    global_batch_size: int
    """Sequences per optimizer step over all processes; accumulation follows from it."""
    deepspeed: dict[str, Any] | None
    """The DeepSpeed JSON, completed, its shared values still "auto"; None trains without DeepSpeed."""
    given: frozenset[str]
    """Names of the fields that are written; the others have their defaults."""
    world_size: int = 1
    """Processes that the rules of the batch assume."""
    print_config: bool = False
    """Print :meth:`to_yaml` and stop."""
    dry_run: bool = False
    """Print the plan and stop."""
    elsewhere: bool = False
    """Only looked at: the run may be another machine's, and a library missing here is no mistake."""
    layout_choice: str = ""
    """The flags for the fields that the recipe left to the plan, and why; empty if it left none."""
    words: tuple[str, ...] = ()
    """Its name or path and the fields of the command line, as they were typed."""
    left_out: tuple[str, ...] = ()
    """See :meth:`superseded`."""

    def __init_subclass__(cls) -> None:
        kinds = cls.__annotations__.items()
        own = {
            name: kind
            for name, kind in kinds
            if isinstance(kind, type) and issubclass(kind, Section)
        }
        cls.SECTIONS = {**own, **cls.SECTIONS, **own}

    @classmethod
    @functools.cache
    def fields(cls) -> dict[str, FieldInfo]:
        """Return every field that a recipe of this kind may have, by its name."""
        found: dict[str, FieldInfo] = {}
        sections: tuple[type[Section], ...] = (*cls.SECTIONS.values(), Trainer)
        for section in sections:
            found |= section.flat_fields()
        return found

    @classmethod
    def superseded(cls, collected: Mapping[str, Given]) -> tuple[str, ...]:
        """Return the fields of a base that do not apply where a recipe above it, or the command line, changes another:
        they are left out."""
        return ()

    def derived(self) -> dict[str, Any]:
        """Return values of the :data:`tape_ds.fields.DERIVED` fields by name, from those that are given."""
        return {}

    @property
    def base_name(self) -> str | None:
        """The name or path of the pretrained model that it starts from; None of a new model."""
        return getattr(self.model, "model", None)

    @property
    def window(self) -> int:
        """Tokens per training sequence, at most."""
        return int(self.data.window)

    @property
    def trains(self) -> bool:
        """Whether the run takes any steps."""
        return True

    @property
    def section_of_method(self) -> "MethodSection | None":
        """The section of the method; None: the whole model is trained, as it is."""
        return None

    @property
    def method_name(self) -> str:
        section = self.section_of_method
        return "full" if section is None else section.method

    @property
    def reading(self) -> DocumentReading | None:
        """How documents become sequences; None where sequences have answers, or are drawn."""
        return None

    @property
    def skipped_content(self) -> str | None:
        """The text between the chunks of PoSE's sequences (``pose_content``); None where no position is skipped."""
        if not self.trains or self.reading is None or not self.reading.skips:
            return None
        return self.reading.pose.content

    @property
    def trains_positions(self) -> bool:
        """Whether an encoding's own parameters are trained, as far as a recipe can tell."""
        return learns(self.model.position_encoding, self.model.position_options)

    @abstractmethod
    def outline(self) -> dict[str, str]:
        """Return this kind's part of the plan, as name -> text, for ``--dry_run``."""

    @property
    def open(self) -> frozenset[str]:
        """Fields that are left to the plan."""
        return frozenset(
            name for name in trainer.CAUTIOUS if getattr(self.trainer, name) == trainer.AUTO
        )

    @property
    def chosen_cpu(self) -> str | None:
        """The setting that makes the run compute on the CPU, as it is written; None without one."""
        if self.trainer.use_cpu:
            return "use_cpu: true"
        if os.environ.get("DS_ACCELERATOR") == "cpu":
            return "DS_ACCELERATOR=cpu"
        return None

    def layout(self, world_size: int | None = None) -> Layout:
        """Return the layout of ``world_size`` processes (default those of the job), with the engine's default buffers.
        Raises UserError: they do not fall into groups that work on the same sequences."""
        world = world_size or self.world_size
        raise_if_any(list(check_groups(self.scale, world)))
        recomputes = self.trainer.recomputes
        zero = "zero_optimization.offload_"
        return Layout(
            world,
            self.scale.sequence_parallel_size,
            self.scale.tensor_parallel_size,
            zero=None if self.deepspeed is None else deepspeed_config.stage(self.deepspeed),
            micro_batch=self.trainer.micro_batch,
            checkpoint_layers=self.memory.checkpoint_layers if recomputes else None,
            offload_checkpoints=self.memory.checkpoint_offload,
            offload_optimizer=deepspeed_config.lookup(
                self.deepspeed or {}, f"{zero}optimizer.device"
            )
            or "none",
            offload_weights=deepspeed_config.lookup(self.deepspeed or {}, f"{zero}param.device")
            or "none",
            mlp_tiles=self.memory.mlp_tiles,
        )

    def accumulation(self) -> int:
        """Backward passes per optimizer step and process; 1 without steps."""
        layout = self.layout()
        if self.trains:
            return self.global_batch_size // (layout.micro_batch * layout.data)
        return 1

    @property
    def division(self) -> str:
        """How the sequences of a step are divided, for people."""
        layout = self.layout()
        ranks = f"{layout.data} {layout.readers}"
        return f"{layout.micro_batch} per device x {ranks} x {self.accumulation()} accumulation"

    @property
    def engine(self) -> str:
        """The engine and the precision, for people."""
        if self.deepspeed is None:
            engine = "no DeepSpeed"
        else:
            engine = f"ZeRO-{deepspeed_config.stage(self.deepspeed)}"
        precision = "fp32"
        if self.trainer.bf16:
            precision = "bf16"
        elif self.trainer.fp16:
            precision = "fp16"
        return f"{engine}, {precision}"

    def training_arguments(self) -> "TrainingArguments":
        """Return the trainer's arguments; transformers picks the device and starts the process group here. Raises
        UserError: transformers refuses a value on this machine."""
        import torch
        from transformers import TrainingArguments

        # transformers before 5.23 has only the other names of some fields
        known = {field.name for field in dataclasses.fields(TrainingArguments)}
        former = {new: old for old, new in trainer.ALIASES.items()}
        kwargs = {
            name if name in known else former[name]: value
            for name, value in self.trainer.kwargs.items()
            if name not in trainer.COMPILED
        }
        kwargs["resume_from_checkpoint"] = self.trainer.resume_from_checkpoint or None
        kwargs["gradient_accumulation_steps"] = self.accumulation()
        if self.chosen_cpu is not None or not torch.accelerator.is_available():
            kwargs["use_cpu"] = True
        engine = self.deepspeed
        size = self.scale.tensor_parallel_size
        # the engine learns the groups that share a model here
        if engine is not None and size > 1:
            engine = engine | {"tensor_parallel": {"autotp_size": size}}
        try:
            return TrainingArguments(**kwargs, deepspeed=engine)
        except (ValueError, TypeError) as error:
            remedy = "change the field that the message names"
            problem = Problem(
                "training arguments", self.name, f"transformers refuses them here: {error}", remedy
            )
            raise UserError(problem) from error

    def as_dict(self) -> dict[str, Any]:
        """Return the whole recipe flat and plain; written as YAML it is a recipe that loads to the same run.

        Values that follow from other fields, such as the accumulation, are left out, and so are the trainer's fields
        with transformers' own defaults.
        """
        flat: dict[str, Any] = {"launcher": self.LAUNCHER}
        for name in self.SECTIONS:
            flat |= getattr(self, name).flat()
        for name in self.weighting.unused_fields:
            flat.pop(name)
        flat["global_batch_size"] = self.global_batch_size
        return (
            flat
            | self.trainer.kwargs
            | {"deepspeed": trainer.AUTO if "deepspeed" in self.open else self.deepspeed}
        )

    def to_yaml(self) -> str:
        """Return :meth:`as_dict` as the text of a recipe, with transformers' defaults of everything that has one."""
        # others decide these
        skipped = {"deepspeed", "gradient_accumulation_steps", "num_train_epochs"}
        values = {name: self.trainer.value(name) for name in trainer.FIELDS if name not in skipped}
        trainers = {
            name: value for name, value in values.items() if value is not None
        } | self.trainer.kwargs
        flat = self.as_dict()
        ours = {name: value for name, value in flat.items() if name not in trainer.FIELDS}
        whole = ours | dict(sorted(trainers.items())) | {"deepspeed": flat["deepspeed"]}
        return yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)

    def problems(self, broken: set[str]) -> Iterator[Problem]:
        """Yield what the rules find that read no field of ``broken``."""
        for name in (*self.SECTIONS, "trainer"):
            yield from run_rules(getattr(self, name), broken, self)
        yield from run_rules(self, broken)

    @rule("model")
    def _base_is_there(self) -> Iterator[Problem]:
        if self.base_name is not None:
            yield from known_config.check_model(self.base_name, online=self.dry_run)

    @rule(
        *(
            "global_batch_size",
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            SEQUENCE,
            TENSOR,
        )
    )
    def _batch(self) -> Iterator[Problem]:
        # then Scale's rule has the problem
        if not self.trains or list(check_groups(self.scale, self.world_size)):
            return
        layout = self.layout()
        written = self.trainer.gradient_accumulation_steps
        batch = self.global_batch_size
        each = layout.micro_batch
        shared = each * layout.data
        if batch < 1:
            yield Problem("global_batch_size", batch, "too small", "give 1 or more")
        elif batch % shared:
            per_device = f"{each} (per_device_train_batch_size)"
            wrong = f"not divisible by {per_device} x {layout.data} ({layout.readers}) = {shared}"
            fitting = [
                size for size in range(min(each, 1024), 0, -1) if batch % (size * layout.data) == 0
            ]
            nearest = max(batch // shared, 1) * shared
            other = ""
            if fitting:
                other = f"per_device_train_batch_size: {fitting[0]}, or "
            yield Problem(
                "global_batch_size",
                batch,
                wrong,
                f"{other}global_batch_size: {nearest}, or other processes",
            )
        elif "gradient_accumulation_steps" in self.given and written != batch // shared:
            wrong = f"{batch} / ({each} x {layout.data} {layout.readers}) makes {batch // shared}"
            yield Problem(
                "gradient_accumulation_steps",
                written,
                wrong,
                "remove it: it follows from global_batch_size",
            )

    @rule("liger", "attention_backend", "use_cpu")
    def _kernels(self) -> Iterator[Problem]:
        wanted = self.model.attention_backend
        unknown = list(attention.check_backend(wanted))
        yield from unknown
        if self.elsewhere or (self.model.liger != "on" and attention.requested(wanted) == "auto"):
            return

        import torch

        device = torch.device(
            "cuda" if torch.cuda.is_available() and self.chosen_cpu is None else "cpu"
        )
        if (
            not unknown
            and (lacking := attention.missing(attention.requested(wanted), device.type)) is not None
        ):
            yield lacking
        if self.model.liger == "on" and (reason := liger.why_not(device)) is not None:
            remedy = "give auto (used where it can be), or pip install liger-kernel on a machine with a GPU"
            yield Problem("liger", "on", reason, remedy)

    @rule(
        *(
            "deepspeed",
            "bf16",
            "fp16",
            "learning_rate",
            "per_device_train_batch_size",
            "global_batch_size",
        ),
        *(SEQUENCE, TENSOR),
        *(
            "max_grad_norm",
            "adam_beta1",
            "adam_beta2",
            "adam_epsilon",
            "weight_decay",
            "optim",
            "lr_scheduler_type",
        ),
    )
    def _deepspeed(self) -> Iterator[Problem]:
        config = self.deepspeed
        arguments = self.trainer
        if config is None:
            return
        batch = self.global_batch_size
        each = arguments.micro_batch
        # the engine counts a sequence once for every process that reads it
        size = self.scale.ways
        if size == 1:
            counted = "global_batch_size"
        else:
            counted = f"global_batch_size x {self.scale.field}"
        expected = {
            "train_micro_batch_size_per_gpu": ("per_device_train_batch_size", each),
            "train_batch_size": (counted, batch * size),
            "gradient_clipping": ("max_grad_norm", arguments.max_grad_norm),
            "bf16.enabled": ("bf16", arguments.bf16 or arguments.bf16_full_eval),
            "fp16.enabled": ("fp16", arguments.fp16 or arguments.fp16_full_eval),
            "optimizer.params.lr": ("learning_rate", arguments.learning_rate),
            "optimizer.params.betas": (
                "[adam_beta1, adam_beta2]",
                [arguments.adam_beta1, arguments.adam_beta2],
            ),
            "optimizer.params.eps": ("adam_epsilon", arguments.adam_epsilon),
            "optimizer.params.weight_decay": ("weight_decay", arguments.weight_decay),
            "scheduler.params.warmup_max_lr": ("learning_rate", arguments.learning_rate),
        }
        if (
            not list(check_groups(self.scale, self.world_size))
            and batch % (each * self.layout().data) == 0
        ):
            accumulation = batch // (each * self.layout().data)
            expected["gradient_accumulation_steps"] = (
                "gradient_accumulation_steps (derived)",
                accumulation,
            )
        for name, (field, trainers) in expected.items():
            written = deepspeed_config.lookup(config, name)
            if written not in (None, "auto", trainers):
                wrong = f"the trainer has {field} = {trainers!r}"
                yield Problem(
                    f"deepspeed.{name}",
                    written,
                    wrong,
                    f'write "auto" in the JSON, or change {field}',
                )
        yield from deepspeed_config.check_itself(
            config, arguments.lr_scheduler_type, arguments.optim
        )

    @rule("deepspeed", "use_cpu")
    def _sharding(self) -> Iterator[Problem]:
        config = self.deepspeed or {}
        yield from deepspeed_config.check_sharding(config, self.world_size, self.trainer.use_cpu)
