"""A training run about to start, whatever it trains: what every launcher's run has, and the trainer made of it.

A kind of run (a file of :mod:`.kinds`) assembles itself from its recipe and says what is scored; the rest is here, in
:mod:`.trainer`, :mod:`.callbacks` and :mod:`.report`.
"""

import functools
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils import set_z3_leaf_modules
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainingArguments, set_seed

from tape_ds import checkpoint, encodings
from tape_ds.checkpoint import resume
from tape_ds.checkpoint.resume import Resumed
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.config import deepspeed_config
from tape_ds.config.recipe import Recipe
from tape_ds.data import sources
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.mix import MixedSequences
from tape_ds.data.order import collate
from tape_ds.data.sources import weights
from tape_ds.data.sources.base import dated_identities
from tape_ds.distributed import comparison
from tape_ds.distributed.cuts import whole_numel
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.methods import liger, liger_forwards
from tape_ds.methods.distillation import Teacher
from tape_ds.models import decoder_shape
from tape_ds.models.flops import training_flops_per_token
from tape_ds.models.loading import extendable
from tape_ds.planning import search
from tape_ds.resilience import run_lock
from tape_ds.resilience.stopping import StopRequest
from tape_ds.run_folder import METRICS, RESULTS, TRAINED, finished
from tape_ds.scoring import inspection
from tape_ds.training import device, forecast, identity, parameter_groups
from tape_ds.training.callbacks import PositionUpdates, Progress, SaveTrained, TokensBySource
from tape_ds.training.checks import libraries
from tape_ds.training.environment import join_process_group, keep_trackers_in, say
from tape_ds.training.memory_savings import ApplyMemorySavings
from tape_ds.training.profiling import StepProfiler
from tape_ds.training.samples import WriteSamples
from tape_ds.training.trackers import use_safe_trackers
from tape_ds.training.trainer import TapeTrainer

logger = logging.getLogger(__name__)


class NothingToDo(Exception):  # noqa: N818 - nothing went wrong
    """Raised on all ranks where ``resume: auto`` meets a run that has come to its end."""


@dataclass(frozen=True)
class Started:
    """A job that has joined, holds its run's folder, and knows what it goes on from."""

    arguments: TrainingArguments
    rank_sync: RankSync
    resumed: Resumed | None


@dataclass(frozen=True, kw_only=True)
class Run(ABC):
    """A run about to start."""

    recipe: Recipe
    arguments: TrainingArguments
    config: extendable.Config
    """Configuration of the model that is trained."""
    model: nn.Module
    names: tuple[str, ...]
    """Exact names of the trained parameters."""
    tokenizer: PreTrainedTokenizerBase
    sequences: Any
    """The run's samples by number, as :class:`tape_ds.data.order.TrainingSequences` serves them."""
    bad_rows: BadRows = field(default_factory=BadRows)
    """What was left out of the data, and of a stream what this process has met of it."""
    origin: Mapping[str, Any] = field(default_factory=lambda: {"base": None})
    """The base it starts from, see :func:`tape_ds.checkpoint.trained.origin`."""
    teacher: Teacher | None = None
    """What the model is kept near, see :mod:`tape_ds.methods.distillation`."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """All that decides its numbers, see :mod:`.identity`."""
    resumed: Resumed | None = None
    """The checkpoint it goes on from."""

    @property
    def record(self) -> TrainedRecord:
        """What every folder that the run saves says about itself."""
        return TrainedRecord(**self.origin, method="full", names=self.names)

    @abstractmethod
    def outline(self) -> dict[str, str]:
        """What only this kind can say before it starts, as name -> text; with ``model``, ``data``, ``held out``."""

    @abstractmethod
    def scoring(self) -> Sequence[TrainerCallback]:
        """Callbacks that score the model around training; each stores what it found."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """Return what the scoring found, for ``run.json``."""

    @abstractmethod
    def show(self) -> None:
        """Print what the scoring found, and draw it into the results' folder."""

    def fingerprints(self) -> dict[str, str]:
        """Fingerprint of each data source, by its spec, for the record of the run."""
        return fingerprints([*weights.specs_of(self.recipe.data.train_data), *self.recipe.data.eval_data])

    @property
    def output(self) -> Path:
        """The run's folder."""
        return Path(self.arguments.output_dir)

    @property
    def mean_tokens(self) -> int:
        """Tokens of a sequence, in the mean over all where sequences have their own lengths."""
        return self.recipe.window

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest sequence."""
        return self.recipe.window

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, all ranks together."""
        return self.recipe.global_batch_size * self.mean_tokens

    @property
    def sequence_tokens(self) -> str:
        """Tokens of a sequence, in words."""
        if self.mean_tokens == self.most_tokens:
            return f"{self.most_tokens:,} tokens"
        return f"{self.mean_tokens:,} tokens in the mean (at most {self.most_tokens:,})"

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return len(self.sequences) // self.recipe.global_batch_size

    @property
    def flops_per_token(self) -> float:
        """Floating-point operations of training, per token."""
        total, trained = self.parameter_counts
        return training_flops_per_token(self.config, self.mean_tokens, trained / total)

    @property
    def parameter_counts(self) -> tuple[int, int]:
        """All parameters and trained ones, ZeRO-3's shards counted whole."""
        sizes = {name: _numel(parameter) for name, parameter in self.model.named_parameters()}
        return sum(sizes.values()), sum(sizes[name] for name in self.names)

    @property
    def rates(self) -> str:
        """A line for each of the optimizer's groups of parameters: how many numbers it has, and how it is stepped."""
        groups = parameter_groups.divide(self.model, self.arguments, self.recipe.optimization)
        return "\n".join(f"{each}, of {sum(map(_numel, each.parameters.values())):,} numbers" for each in groups)


def _numel(parameter: nn.Parameter) -> int:
    """Return numbers that a parameter stands for, however they are held: sharded by ZeRO-3, a piece of it in each
    process, or two to a byte in 4 bits."""
    packed = getattr(parameter, "quant_state", None)
    return packed.shape.numel() if packed is not None else whole_numel(parameter)


def start(
    recipe: Recipe, config: extendable.Config, decides: Mapping[str, Any], read: Callable[[], Mapping[str, str]]
) -> Started:
    """Join the job, take hold of the run's folder, choose the checkpoint to go on from, and check that this is the run
    that saved it and that it fits the devices.

    It comes before a model is built: under ZeRO-3 the DeepSpeed configuration must exist, so that weights are sharded
    as they are made or loaded. And before sequences are made, which may take hours.

    Args:
        recipe: checked.
        config: of the model that is trained.
        decides: the run's identity.
        read: makes the fingerprints of the training data that are in ``decides``.

    Raises:
        UserError: a machine of the job differs, or does not come; transformers refuses a value on this machine; another
            job is at work in the folder; there is no checkpoint to go on from, or none that this job can read; the
            folder holds another run's; the run would not fit. On all ranks.
        NothingToDo: ``resume: auto``, and the run has come to its end.
    """
    comparison.check(recipe.as_dict(), decides, recipe.trainer_value("ddp_timeout"))
    arguments = recipe.training_arguments()
    join_process_group(arguments)
    rank_sync, output = RankSync(), Path(arguments.output_dir)
    _claim(output, rank_sync)
    raise_if_any(_everyones(run_lock.not_shared(output, rank_sync), rank_sync))
    resumed = None
    if recipe.trains:
        resumed = resume.choose(recipe.resume_from_checkpoint, output, rank_sync)
        stage = None if recipe.deepspeed is None else deepspeed_config.stage(recipe.deepspeed)
        resume.require_fitting(resumed, stage, recipe.scale.tensor_parallel_size)
    raise_if_any(rank_sync.first(_of_another_run(recipe, output, resumed)))
    set_seed(arguments.seed)
    started = Started(arguments, rank_sync, resumed)
    if resumed is not None:
        _require_same(recipe, started, resumed, decides, read)
    _require_room(recipe, config, rank_sync)
    return started


def _claim(output: Path, rank_sync: RankSync) -> None:
    """Be the only job in the run's folder, and clear away what a killed one left half done."""
    others = rank_sync.rank == 0 and any(
        holder.pid != os.getpid() or not holder.is_here for holder in run_lock.living(output)
    )
    raise_if_any(rank_sync.first(run_lock.refuse(output) if others else []))
    wrong: list[Problem] = []
    try:
        run_lock.RunLock(output, rank_sync.rank).acquire()
    except UserError as error:
        wrong = error.problems
    raise_if_any(_everyones(wrong, rank_sync))
    if rank_sync.rank == 0:
        for done in checkpoint.tidy(output):
            say(done)
    rank_sync.first(None)  # no rank looks before it is tidy


def _everyones(own: list[Problem], rank_sync: RankSync) -> list[Problem]:
    """Return the problems of all ranks, each once: a rank that refused alone would leave the others waiting for it."""
    return list({str(problem): problem for problems in rank_sync.objects(own) for problem in problems}.values())


def _of_another_run(recipe: Recipe, output: Path, resumed: Resumed | None) -> list[Problem]:
    """A new run in a folder with checkpoints would leave two runs' in it, and a later resume would take either. A
    method that trains nothing would put its scores and its model in the place of those that were trained."""
    found = [folder.name for folder in checkpoint.numbered(output)]
    if resumed is not None or not found or (recipe.trains and recipe.safety.start_anew):
        return []
    wrong = f"it holds checkpoints of an earlier run: {', '.join(found)}"
    remedy = "--resume auto to go on with it, --start_anew to remove them, or " * recipe.trains + "another output_dir"
    return [Problem("output_dir", str(output), wrong, remedy)]


def _require_same(
    recipe: Recipe,
    started: Started,
    resumed: Resumed,
    now: Mapping[str, Any],
    read: Callable[[], Mapping[str, str]],
) -> None:
    """Check that the chosen checkpoint is of this very run, and print what may differ and does."""
    rank_sync, saved = started.rank_sync, resumed.manifest.identity
    found = identity.differences(saved, now)
    if any(each.name.startswith("data") for each in found):
        with dated_identities():
            as_before = identity.differences(saved, {**now, **identity.of_data(read())})
        found = found if any(each.name.startswith("data") for each in as_before) else as_before
    raise_if_any(_everyones(identity.problems(resumed.folder, found, recipe.safety.resume_anyway), rank_sync))
    same = all(each.name == identity.COMMIT for each in found)
    ended = rank_sync.first(finished(Path(started.arguments.output_dir)) if same else None)
    if recipe.resume_from_checkpoint == resume.AUTO and ended is not None:
        raise NothingToDo(f"{started.arguments.output_dir}: finished already, at step {ended['step']}")
    if rank_sync.rank == 0:
        for line in resume.describe(resumed, found):
            say(line)


def _require_room(recipe: Recipe, config: extendable.Config, rank_sync: RankSync) -> None:
    """Check that the run fits the GPUs at hand, or is small enough for a CPU."""
    stopped = recipe.trains and not recipe.memory.force
    own = search.refusal(forecast.here(recipe, config, rank_sync.world)) if stopped else []
    own += device.check(recipe, config)
    raise_if_any(_everyones(own, rank_sync))


def fingerprints(specs: Sequence[str]) -> dict[str, str]:
    """Fingerprint of each data source, by its spec."""
    return {spec: sources.parse(spec).fingerprint() for spec in specs}


def weights_dtype(arguments: TrainingArguments, trains: bool = True) -> torch.dtype:
    """Return what the weights are loaded in: 16 bit only under an engine, which keeps fp32 masters of what it trains,
    or where nothing is trained, so that it is scored in the precision of what is.

    Without an engine the optimizer steps on the weights themselves: small steps would vanish in bf16, and a gradient
    scaler refuses fp16; autocast computes in 16 bit there.
    """
    if trains and not arguments.deepspeed:
        return torch.float32
    return torch.bfloat16 if arguments.bf16 else torch.float16 if arguments.fp16 else torch.float32


def sample_count(recipe: Recipe, sequences: int) -> int:
    """Samples that the run consumes: of its steps, or of its epochs over ``sequences`` of them, in whole steps."""
    steps = recipe.trainer_value("max_steps")
    if steps <= 0:
        steps = math.ceil(recipe.trainer_value("num_train_epochs") * sequences / recipe.global_batch_size)
        raise_if_any(libraries.check_schedule(recipe, steps) if steps else [])
    return steps * recipe.global_batch_size


def build_trainer(run: Run, stop: StopRequest | None = None) -> TapeTrainer:
    """Return the trainer with this project's callbacks instead of transformers' printing ones; ``stop`` asks it to
    stop."""
    keep_trackers_in(run.output, resumed=run.resumed is not None)
    _use_liger(run)
    _gather_experts_together(run)
    # the sequences hold every epoch already; the trainer would otherwise run its epochs over all of them
    run.arguments.max_steps = run.steps
    run.arguments.warmup_steps = libraries.warmup_steps(run.arguments.warmup_steps, max(1, run.steps))
    trainer = TapeTrainer(
        record=run.record,
        tokens_per_step=run.tokens_per_step,
        layout=run.recipe.layout(run.arguments.world_size),
        flops_per_token=run.flops_per_token,
        safety=run.recipe.safety,
        optimization=run.recipe.optimization,
        teacher=run.teacher,
        identity=run.identity,
        stop=stop,
        model=run.model,
        args=run.arguments,
        train_dataset=run.sequences,
        data_collator=functools.partial(collate, pad_token_id=run.tokenizer.pad_token_id or 0),
        processing_class=run.tokenizer,
    )
    for callback in [c for c in trainer.callback_handler.callbacks if type(c).__name__ in _REPLACED]:
        trainer.remove_callback(callback)
    use_safe_trackers(trainer, run.output)
    if run.names:
        trainer.add_callback(ApplyMemorySavings(run.recipe.memory))
    if run.recipe.profile.profile:
        trainer.add_callback(StepProfiler(trainer, run.recipe.profile, run.output))
    trainer.add_callback(SaveTrained(trainer, run.output / TRAINED, outdated=run.output / RESULTS / "run.json"))
    if run.names and encodings.without_updates(run.config):
        reasons = [str(each) for each in inspection.check(run.config)]
        if run.recipe.scale.tensor_parallel_size > 1:
            reasons.append("under tensor parallelism no process has the whole state of a sequence")
        if (run.config.position_options or {}).get("start") == "alibi":
            reasons.append("start: alibi has no pairs of cosines and sines")
        if reasons:
            logger.info("position updates are not measured: %s", reasons[0])
        else:
            trainer.add_callback(PositionUpdates(run.sequences[0]))
    if isinstance(run.sequences, MixedSequences):
        trainer.add_callback(TokensBySource(run.sequences, run.recipe.global_batch_size))
    for callback in run.scoring():
        trainer.add_callback(callback)
    trainer.add_callback(Progress(trainer, run.output / METRICS))
    if run.names and run.recipe.samples.sample_prompts:  # behind Progress, which looks at the memory of a step
        trainer.add_callback(WriteSamples(trainer, run.recipe.samples, run.tokenizer))
    return trainer


def _gather_experts_together(run: Run) -> None:
    """Under ZeRO-3, gather a layer's experts as one: which of them a rank calls depends on its tokens."""
    experts = {run.model.get_submodule(path.rpartition(".")[0]) for path in decoder_shape.routers(run.model)}
    if experts and run.recipe.deepspeed is not None and deepspeed_config.stage(run.recipe.deepspeed) == 3:
        set_z3_leaf_modules(run.model, list({type(each) for each in experts}))


def _use_liger(run: Run) -> None:
    """Put Liger's kernels into the model where the recipe wants them, and say in the log what they replace."""
    wanted, reason = run.recipe.model.liger, liger.why_not(run.arguments.device)
    assert wanted != "on" or reason is None, "checked with the recipe"
    if wanted != "off" and reason is None:
        logger.info("Liger's kernels in place of: %s", ", ".join(liger_forwards.use_liger(run.model)))


_REPLACED = ("PrinterCallback", "ProgressCallback")
