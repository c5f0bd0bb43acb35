"""A training run that is ready to start, of any kind, and the trainer made of it.

Each kind (a file of :mod:`.runs`) subclasses :class:`Run`.
"""

import functools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import torch
from deepspeed.utils import set_z3_leaf_modules
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainingArguments

from tape_ds import encodings
from tape_ds.checkpoint import trained
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.config import deepspeed_config
from tape_ds.config.recipe import Recipe
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.left_context import Buckets, ExactWeights, measure
from tape_ds.data.mix import MixedSequences
from tape_ds.data.order import RunSamples, collate
from tape_ds.distributed.cuts import whole_numel
from tape_ds.errors import raise_if_any
from tape_ds.methods import init_weights, liger, liger_forwards
from tape_ds.methods.distillation import Teacher
from tape_ds.models import decoder, recurrent
from tape_ds.models.flops import training_flops_per_token
from tape_ds.models.loading.extendable import Config
from tape_ds.planning.prediction import Plan
from tape_ds.resilience.stopping import StopRequest
from tape_ds.run_folder import METRICS, RESULTS, TRAINED
from tape_ds.scoring import inspection
from tape_ds.training import library_checks, parameter_groups
from tape_ds.training.callbacks import (
    ApplyMemorySavings,
    AverageLast,
    CompileModel,
    PositionUpdates,
    Progress,
    SaveTrained,
    TokensBySource,
)
from tape_ds.training.environment import isolate_trackers, keep_trackers_in
from tape_ds.training.job import TrainingJob
from tape_ds.training.profiling import StepProfiler
from tape_ds.training.samples import WriteSamples
from tape_ds.training.trainer import TapeTrainer

logger = logging.getLogger(__name__)

Figures: TypeAlias = dict[str, object]
"""Plain values by name."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data of a run."""

    sequences: RunSamples
    """The run's samples by number."""
    bad_rows: BadRows
    """Rows that were left out; of a stream, those that this process has read."""


R = TypeVar("R", bound=Recipe)
D = TypeVar("D", bound=Data)


@dataclass(frozen=True, kw_only=True)
class Run(ABC, Generic[R, D]):
    """A run that is ready to train; :func:`.runs.assembly.assemble` makes one."""

    job: TrainingJob[R]
    data: D
    plan: Plan
    """Predicted memory."""
    exact_weights: ExactWeights | None
    """Weights of targets by their left context."""
    model: nn.Module
    names: tuple[str, ...]
    """Exact names of the trained parameters."""
    teacher: Teacher | None
    """The model that the trained one is kept near, see :mod:`tape_ds.methods.distillation`."""

    @classmethod
    @abstractmethod
    def read_data(cls, job: TrainingJob[R]) -> D:
        """Read held-out documents and training sequences."""

    @classmethod
    def load_model(cls, job: TrainingJob[R], data: D) -> nn.Module:
        """Load the model; here a new one, whose weights follow from the seed."""
        arguments = job.arguments
        return init_weights.build(job.fetched.config, arguments.seed, weights_dtype(arguments))

    @classmethod
    def load_teacher(cls, job: TrainingJob[R]) -> Teacher | None:
        return None

    @abstractmethod
    def outline(self) -> dict[str, str]:
        """Return lines for the announcement, as name -> text; with ``model``, ``encoding``, ``data``, ``held out``."""

    @abstractmethod
    def scoring(self) -> Sequence[TrainerCallback]:
        """Return callbacks that score the model around training; each stores its results."""

    @abstractmethod
    def figures(self) -> Figures:
        """Return the scores for ``run.json``."""

    @abstractmethod
    def show(self) -> None:
        """Print the scores, and draw them into the results' folder."""

    @property
    def recipe(self) -> R:
        return self.job.recipe

    @property
    def arguments(self) -> TrainingArguments:
        return self.job.arguments

    @property
    def output(self) -> Path:
        return self.job.output

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.job.fetched.tokenizer

    @property
    def config(self) -> Config:
        """Configuration of the model that is trained."""
        return self.job.fetched.config

    @property
    def identity(self) -> Mapping[str, object]:
        """Everything that decides the run's numbers, see :mod:`.identity`."""
        return self.job.identity

    @property
    def sequences(self) -> RunSamples:
        return self.data.sequences

    @functools.cached_property
    def record(self) -> TrainedRecord:
        base = self.job.fetched.base
        method = self.recipe.method_name
        published = self.job.target.base
        if base is None or published is None:
            return TrainedRecord(base=None, method=method, names=self.names)
        origin = trained.origin(base.name, base.folder, published.folder)
        return TrainedRecord(**origin, method=method, names=self.names)

    @property
    def mean_tokens(self) -> int:
        """Tokens of a sequence, on average over all where sequences have their own lengths."""
        return int(self.recipe.window)

    @property
    def most_tokens(self) -> int:
        return int(self.recipe.window)

    @property
    def tokens_per_step(self) -> int:
        return int(self.recipe.global_batch_size) * self.mean_tokens

    @property
    def steps(self) -> int:
        return int(len(self.sequences) // self.recipe.global_batch_size)

    @property
    def attention_span(self) -> float | None:
        """Tokens that attention is computed over, where it is cut into groups."""
        return None

    @property
    def parameter_counts(self) -> tuple[int, int]:
        """All parameters and trained ones, ZeRO-3's shards counted whole."""
        sizes = {name: _numel(parameter) for name, parameter in self.model.named_parameters()}
        return sum(sizes.values()), sum(sizes[name] for name in self.names)

    @property
    def rates(self) -> str:
        """A line for each of the optimizer's groups of parameters: its size and how it is stepped."""
        groups = parameter_groups.divide(self.model, self.arguments, self.recipe.optimization)
        return "\n".join(
            f"{group}, of {sum(map(_numel, group.parameters.values())):,} numbers"
            for group in groups
        )

    @property
    def batch(self) -> str:
        """A line on the sequences and tokens of a step, and how they are divided."""
        tokens = f"{self.most_tokens:,} tokens"
        if self.mean_tokens != self.most_tokens:
            tokens = f"{self.mean_tokens:,} tokens in the mean (at most {self.most_tokens:,})"
        whole = f"{tokens} = {self.tokens_per_step:,} tokens a step"
        return f"{self.recipe.global_batch_size} sequences x {whole} ({self.recipe.division})"

    @property
    def target_weights(self) -> dict[str, str]:
        """Lines about the weights of targets, by name; none where all count the same."""
        chosen = self.recipe.weighting
        if chosen.target_weights == "equal":
            return {}
        lines = {"target weights": chosen.outline(self.recipe.window)}
        if self.exact_weights is not None:
            lines["left context"] = str(self.exact_weights)
        return lines

    @property
    def new_model(self) -> str:
        """A line on the sizes of a model that is trained from nothing."""
        config = self.config
        millions = self.parameter_counts[0] / 1e6
        layers = f"{config.num_hidden_layers} layers of {config.hidden_size:,}"
        return f"new, {millions:,.1f} M parameters, {layers}, {config.num_attention_heads} heads"


def measure_weights(recipe: Recipe, sequences: RunSamples) -> ExactWeights | None:
    """Return the weights of targets by their left context, measured on a run's first sequences; None where all count
    the same, or by a model's losses. Raises UserError: the sequences have no such contexts."""
    chosen = recipe.weighting
    if not recipe.trains or chosen.target_weights != "exact":
        return None
    buckets = Buckets(chosen.tail(recipe.window), chosen.exact_ratio)
    histogram, samples = measure(sequences, buckets)
    return ExactWeights.measured(histogram, buckets, chosen.exact_extra, samples)


def _numel(parameter: nn.Parameter) -> int:
    """Return numbers of a whole parameter, however it is held: sharded by ZeRO-3, a piece of it in each process, or two
    to a byte in 4 bits."""
    packed = getattr(parameter, "quant_state", None)
    if packed is not None:
        return packed.shape.numel()
    return whole_numel(parameter)


def weights_dtype(arguments: TrainingArguments, trains: bool = True) -> torch.dtype:
    """Return the dtype that weights are loaded in: 16 bit only under an engine, which keeps fp32 masters of what it
    trains, or where nothing is trained, so that it is scored in the precision of trained models.

    Without an engine the optimizer steps on the weights themselves: small steps would vanish in bf16, and a gradient
    scaler refuses fp16; autocast computes in 16 bit there.
    """
    if trains and not arguments.deepspeed:
        return torch.float32
    if arguments.bf16:
        return torch.bfloat16
    if arguments.fp16:
        return torch.float16
    return torch.float32


def sample_count(recipe: Recipe, sequences: int) -> int:
    """Return samples that the run consumes: of its steps, or of its epochs over ``sequences``, in whole steps."""
    steps = recipe.trainer.max_steps
    if steps <= 0:
        steps = math.ceil(recipe.trainer.num_train_epochs * sequences / recipe.global_batch_size)
        problems = library_checks.check_schedule(recipe, steps) if steps else []
        raise_if_any([*problems, *recipe.averaging.check_saves(steps, recipe.trainer.save_steps)])
    return int(steps * recipe.global_batch_size)


def build_trainer(run: Run, stop: StopRequest | None = None) -> TapeTrainer:
    """Return the trainer with this project's callbacks instead of transformers' printing ones; ``stop`` asks it to
    stop."""
    recipe = run.recipe
    arguments = run.arguments
    output = run.output
    keep_trackers_in(output, resumed=run.job.resumed is not None)
    use_liger(run)
    # Under ZeRO-3, gather a layer's experts as one: which of them a rank calls depends on its tokens.
    experts = {
        run.model.get_submodule(path.rpartition(".")[0]) for path in decoder.routers(run.model)
    }
    # and a layer that carries a state: how often a rank calls it depends on its documents
    experts |= set(recurrent.carriers(run.model).values())
    if experts and recipe.deepspeed is not None and deepspeed_config.stage(recipe.deepspeed) == 3:
        set_z3_leaf_modules(run.model, list({type(module) for module in experts}))
    # the sequences hold every epoch already; the trainer would otherwise run its epochs over all of them
    arguments.max_steps = run.steps
    arguments.warmup_steps = library_checks.warmup_steps(arguments.warmup_steps, max(1, run.steps))

    total, trains = run.parameter_counts
    flops = training_flops_per_token(
        run.config, run.mean_tokens, trains / total, attention_span=run.attention_span
    )
    trainer = TapeTrainer(
        record=run.record,
        tokens_per_step=run.tokens_per_step,
        layout=recipe.layout(arguments.world_size),
        flops_per_token=flops,
        safety=recipe.safety,
        optimization=recipe.optimization,
        teacher=run.teacher,
        target_weights=recipe.weighting,
        identity=run.identity,
        stop=stop,
        model=run.model,
        args=arguments,
        train_dataset=run.sequences,
        data_collator=functools.partial(
            collate, pad_token_id=run.tokenizer.pad_token_id or 0, weigh=run.exact_weights
        ),
        processing_class=run.tokenizer,
    )
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ in ("PrinterCallback", "ProgressCallback"):
            trainer.remove_callback(callback)
    isolate_trackers(trainer.callback_handler.callbacks)

    # callbacks run in this order: weights are saved before anything that could still fail
    if run.names:
        trainer.add_callback(ApplyMemorySavings(recipe.memory))
        if recipe.trainer.torch_compile:
            trainer.add_callback(CompileModel(recipe))
    if recipe.profile.profile:
        trainer.add_callback(StepProfiler(trainer, recipe.profile, output))
    if run.names and recipe.averaging.average_last is not None:
        trainer.add_callback(AverageLast(trainer, output, recipe.averaging.average_last))
    trainer.add_callback(
        SaveTrained(trainer, output / TRAINED, outdated=output / RESULTS / "run.json")
    )
    if run.names and encodings.without_updates(run.config):
        reasons = [str(problem) for problem in inspection.check(run.config)]
        if recipe.scale.tensor_parallel_size > 1:
            reasons.append("under tensor parallelism no process has the whole state of a sequence")
        if (run.config.position_options or {}).get("start") == "alibi":
            reasons.append("start: alibi has no pairs of cosines and sines")
        if reasons:
            logger.info("position updates are not measured: %s", reasons[0])
        else:
            trainer.add_callback(PositionUpdates(run.sequences[0]))
    if isinstance(run.sequences, MixedSequences):
        trainer.add_callback(TokensBySource(run.sequences, recipe.global_batch_size))
    # add_callback warns of two of one class
    trainer.callback_handler.callbacks += run.scoring()
    trainer.add_callback(Progress(trainer, output / METRICS))
    # after Progress, which reads the memory of a step
    if run.names and recipe.samples.sample_prompts:
        trainer.add_callback(WriteSamples(trainer, recipe.samples, run.tokenizer))
    return trainer


def use_liger(run: Run) -> None:
    choice = run.recipe.model.liger
    reason = liger.why_not(run.arguments.device)
    assert choice != "on" or reason is None, "checked with the recipe"
    if choice != "off" and reason is None:
        logger.info(
            "Liger's kernels in place of: %s", ", ".join(liger_forwards.use_liger(run.model))
        )
