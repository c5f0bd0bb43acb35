"""transformers' ``Trainer``, fitted to this project.

Samples come in their own order; saved folders hold only trained weights; a checkpoint is committed by
:mod:`tape_ds.checkpoint.saving`, leaves frozen weights out and is restored to the last digit by
:mod:`tape_ds.checkpoint.load`; one dict of metrics per logging step; parameters are stepped in groups
(:mod:`.parameter_groups`). At the end of each step all ranks exchange how it went, so that they stop, save, skip and
report together.
"""

import functools
import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DeepSpeedSchedulerWrapper, DummyOptim
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, set_seed
from transformers.trainer import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from tape_ds import results, run_folder, storage
from tape_ds.checkpoint import load, saving, trained
from tape_ds.checkpoint.saving import Saver
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.config.sections import Optimization, Safety
from tape_ds.config.target_weights import TargetWeights
from tape_ds.data import order
from tape_ds.distributed import cuts, distributed_map, processes
from tape_ds.distributed.group import RankGroup
from tape_ds.distributed.layout import Layout
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.distributed.tensor import use_tensor_parallelism
from tape_ds.distributed.ulysses import use_sequence_parallel
from tape_ds.methods.distillation import Teacher
from tape_ds.methods.prepare import assert_trainable
from tape_ds.resilience import guards
from tape_ds.resilience.guards import StoppedByGuard
from tape_ds.resilience.stopping import Stopped, StopRequest, shield_worker, take_save_request
from tape_ds.resilience.watchdog import Watchdog
from tape_ds.training import metrics, objective, parameter_groups
from tape_ds.training.environment import say
from tape_ds.training.step_clock import StepClock
from tape_ds.training.step_guards import StepGuards

_WITHIN = ("data", "forward", "backward", "step")


class RestoreState(TrainerCallback):
    """Restores sums that the base class sets to zero before the first step, and commits a pending save before anything
    that could still fail."""

    def __init__(self, trainer: "TapeTrainer"):
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.trainer.load_rank_state()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.trainer.beat("saving")
        self.trainer.saver.finish()


class TapeTrainer(Trainer):
    """A Trainer for a model of which exactly the parameters ``record.names`` are trained; its training set serves
    samples in order (:mod:`tape_ds.data.order`). ``flops_per_token`` are the model's training FLOPs, for MFU;
    ``identity`` is stored with its checkpoints."""

    def __init__(
        self,
        *,
        record: TrainedRecord,
        tokens_per_step: int,
        flops_per_token: float,
        layout: Layout | None = None,
        safety: Safety | None = None,
        optimization: Optimization | None = None,
        teacher: Teacher | None = None,
        target_weights: TargetWeights | None = None,
        identity: Mapping[str, Any] | None = None,
        stop: StopRequest | None = None,
        **arguments: Any,
    ):
        super().__init__(**arguments)
        assert_trainable(self.model, record.names)
        self.record = record
        self.tokens_per_step = tokens_per_step
        self.flops_per_token = flops_per_token
        self.safety = Safety() if safety is None else safety
        self.optimization = Optimization() if optimization is None else optimization
        self.rank_sync = RankSync()

        # ranks that work on the same sequences
        self.layout = Layout(self.rank_sync.world) if layout is None else layout
        self._share_of_flops = 1 / self.layout.ways
        """This rank's share of the floating-point operations that transformers counts from its parameters."""
        timeout = timedelta(seconds=self.args.ddp_timeout)
        group = None
        if self.layout.sequence > 1:
            use_sequence_parallel(self.model, self.layout, self.rank_sync.rank, timeout)
            group = RankGroup.of(self.layout, self.rank_sync.rank, timeout)
        elif self.layout.tensor > 1:
            whole = self.model.num_parameters(exclude_embeddings=True)
            use_tensor_parallelism(self.model, self.layout, self.rank_sync.rank, timeout)
            self._share_of_flops *= whole / self.model.num_parameters(exclude_embeddings=True)
            distributed_map.set_team_size(self.layout.tensor)

        # saving and resuming
        output = Path(self.args.output_dir)
        plugin = getattr(self.args, "hf_deepspeed_config", None)
        stage = (
            None
            if plugin is None
            else int(plugin.config.get("zero_optimization", {}).get("stage", 0))
        )
        self.objective = objective.choose(
            teacher, target_weights, self.rank_sync, group, alike=stage == 3
        )
        about: dict[str, Any] = {
            "processes": self.rank_sync.world,
            "stage": stage,
            "tensor": self.layout.tensor,
        }
        about |= {"identity": dict(identity or {}), "versions": results.versions()}
        keep = {"limit": self.args.save_total_limit, "every": self.safety.keep_every}
        keep |= {"steps": tuple(self.safety.keep_steps)}
        self.saver = Saver(
            output, self.rank_sync, about, keep, say=say, background=self.safety.async_save
        )
        self.saved: Path | None = None
        """The checkpoint of the last save, if it was committed."""
        self._save_name: str | None = None
        self._resumed: Path | None = None
        self.add_callback(RestoreState(self))

        # guards
        file = output / run_folder.NONFINITE if self.rank_sync.rank == 0 else None

        def samples_of(step: int, rank: int) -> list[int]:
            sizes = {
                "micro_batch": self.args.per_device_train_batch_size,
                "world": self.layout.data,
            }
            return guards.samples_of_step(
                step, self.layout.data_rank(rank), global_batch=self._step_samples, **sizes
            )

        def say_once(text: str) -> None:
            if self.rank_sync.rank == 0:
                say(text)

        self.guards = StepGuards(self.safety, file, samples_of, say_once)
        self.watchdog: Watchdog | None = None
        """Ends the process where it makes no progress; set for training."""
        self._skipped_loss: torch.Tensor | None = None
        """This rank's loss of a spike whose step is being left out."""
        self._own_loss = torch.zeros((), device=self.args.device)
        """Loss of this rank's part of this step."""
        self._synced = 0
        """Last step at whose end the ranks exchanged their state."""
        self._stop = stop
        self._stop_reason: str | None = None

        # metrics
        self.peak_memory_bytes: int | None = None
        """The most that any rank needed while it trained; known when training has ended."""
        self._parts = torch.zeros(len(self.objective.names), device=self.args.device)
        """This rank's part of the objective's figures since the last logging step."""
        self._logged_before = 0
        """The logging step before the one that is being logged."""
        self._rates: list[float] = []
        """Learning rates of the parameter groups in the last step."""
        self.clock = StepClock()

    @property
    def skipped_steps(self) -> int:
        return self.guards.skipped_steps(self.model_wrapped)

    def go_without_training(self) -> None:
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.is_local_process_zero = self.is_local_process_zero()
        control = self.callback_handler.on_train_begin(self.args, self.state, TrainerControl())
        self.callback_handler.on_train_end(self.args, self.state, control)

    def get_optimizer_cls_and_kwargs(self, args: Any, model: Any = None) -> tuple[Any, Any]:
        kind, settings = Trainer.get_optimizer_cls_and_kwargs(args, model)
        groups = parameter_groups.for_optimizer(self.model, self.args, self.optimization)
        # some optimizers make parameter groups themselves
        return kind, {"params": groups} | settings

    def create_optimizer(self, model: Any = None) -> Any:
        optimizer = super().create_optimizer(model)
        if isinstance(optimizer, DummyOptim):  # the engine's JSON names the optimizer
            optimizer.params = parameter_groups.for_optimizer(
                self.model, self.args, self.optimization
            )
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        # Some schedules (polynomial) read their first rate in optimizer.defaults, which an engine's optimizer does not
        # have; the one inside does.
        engine = getattr(self.optimizer if optimizer is None else optimizer, "optimizer", None)
        if engine is not None and not hasattr(engine, "defaults"):
            engine.defaults = engine.optimizer.defaults
        return super().create_scheduler(num_training_steps, optimizer)

    def get_train_dataloader(self) -> Any:
        loader = super().get_train_dataloader()
        if self.layout.ways > 1:
            # accelerate deals the batches to all ranks in turn, but ranks of a group read the same sequences
            sampler = loader.batch_sampler
            sampler.num_processes, sampler.process_index = (
                self.layout.data,
                self.layout.data_rank(self.rank_sync.rank),
            )
        # its workers ignore signals that are meant for their rank; accelerate's adapter iterates the inner loader
        inner = getattr(loader, "base_dataloader", loader)
        inner.worker_init_fn = functools.partial(shield_worker, init=inner.worker_init_fn)
        return loader

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None
    ) -> tuple[Any, Any]:
        """Prepare as the base class does, but save and load by this project's files."""
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        if not self.is_deepspeed_enabled:
            self.guards.protect(self.optimizer)
        else:
            saving.EngineFiles(self.model_wrapped)
            if self.layout.tensor > 1:
                # it would send the first batch, CUDA tensors pickled, from process to process: the loader saw to that
                self.model_wrapped.first_dataloader_check.remove()
            if not guards.protects_itself(self.model_wrapped):
                self.guards.protect(self.model_wrapped.optimizer)
        if resume_from_checkpoint is not None:
            self._resumed = Path(resume_from_checkpoint)
            load.restore(self, self._resumed)
        return prepared

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load nothing: :meth:`_prepare_for_training` restores the weights together with everything else."""

    def load_rank_state(self) -> None:
        """Continue the sums of :meth:`_rank_state`; logging and saving intervals are this run's own.

        Where another number of ranks saved, every rank's random numbers start from the seed, the step and its number.
        """
        self.state.compute_steps(self.args, self.state.max_steps)
        self._synced = self.state.global_step
        if self._resumed is None:
            return
        if not (self._resumed / self.rng_file).is_file():
            set_seed(
                (self.args.seed + 1_000_003 * self.state.global_step + 7919 * self.rank_sync.rank)
                % 2**32
            )
        state = load.rank_state(self._resumed, self.rank_sync)
        if state is None:
            return
        self._tr_loss.fill_(state["loss"])
        if len(state["parts"]) == len(self._parts):  # else of another objective (resume_anyway)
            self._parts = state["parts"].to(self._parts)
        self._total_loss_scalar = state["total_loss"]
        self._globalstep_last_logged = state["last_logged"]
        self.guards.load_state(state, self.model_wrapped)
        order.load_places(self.train_dataset, state["places"])

    def _rank_state(self) -> dict[str, Any]:
        """Return what :meth:`load_rank_state` loads; numbers to the last digit."""
        logged = self._globalstep_last_logged == self.state.global_step
        return {
            "loss": (0.0 if logged else self._tr_loss.item()).hex(),
            "total_loss": float(self._total_loss_scalar).hex(),
            "last_logged": self._globalstep_last_logged,
            **self.guards.state(),
            "parts": [part.hex() for part in self._parts.tolist()],
            "places": order.places(self.train_dataset, self.state.global_step * self._step_samples),
        }

    @property
    def _step_samples(self) -> int:
        return (
            self.args.per_device_train_batch_size
            * self.layout.data
            * self.args.gradient_accumulation_steps
        )

    @property
    def rng_file(self) -> str:
        """Name of this rank's file of random states, as transformers chooses it."""
        if self.args.world_size > 1:
            return f"rng_state_{self.args.process_index}.pth"
        return "rng_state.pth"

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write a folder of trained weights; every rank takes part in gathering it."""
        folder = output_dir or self.args.output_dir
        trained.save_trained(folder, self.model, self.record, self.processing_class)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write this rank's part of a checkpoint, and commit it with all others."""
        name = self._save_name
        self._save_name = None
        self.saved = None
        self.beat("saving")
        self.store_flos()
        counted = sum(cuts.whole_numel(p) for p in self.model.parameters() if p.requires_grad)
        need = saving.need(
            counted, next(self.model.parameters()).element_size(), self.is_deepspeed_enabled
        )
        part = self.saver.begin(self.state.global_step, need, name)
        if part is None:
            return
        # first: its collectives meet no rank in trouble
        part.attempt(lambda: self.save_model(str(part.folder)))
        if self.is_deepspeed_enabled:
            engine = self.model_wrapped
            saving.save_engine(engine, part, self.state.global_step, cuts.described(engine.module))

        files: dict[str, Callable[[Path], Any]] = {
            self.rng_file: lambda path: self._save_rng_state(str(path.parent)),
            f"rank_state_{self.rank_sync.rank}.json": lambda path: storage.write_json(
                path, self._rank_state()
            ),
        }
        if self.args.should_save:
            own_schedule = not isinstance(self.lr_scheduler, DeepSpeedSchedulerWrapper)
            states = {
                OPTIMIZER_NAME: None if self.is_deepspeed_enabled else self.optimizer,
                SCHEDULER_NAME: self.lr_scheduler if own_schedule else None,
                SCALER_NAME: getattr(self.accelerator, "scaler", None),
            }
            for file, state in states.items():
                if state is not None:
                    files[file] = functools.partial(saving.save_pickle, state.state_dict())
            files[TRAINER_STATE_NAME] = lambda path: self.state.save_to_json(str(path))
        for file, task in files.items():
            part.write(file, task, at_once=True)
        part.go()
        if not self.saver.background:
            self.saved = self.saver.finish()

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        # before the step: an engine that made the optimizer moves the schedule on inside of its own
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        loss = super().training_step(*args, **kwargs)
        self.beat("step")
        if self._skipped_loss is not None:
            loss = self._skipped_loss
            self._skipped_loss = None
        self._own_loss += loss
        return loss

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        self.beat("data")
        samples, targets = super().get_batch_samples(*args, **kwargs)
        if targets is None:
            return samples, targets
        # counted once for every rank that has a part of the sequence's loss
        return samples, self.objective.divisor(samples, targets / self.layout.sequence)

    def get_total_train_batch_size(self, args: Any) -> int:
        # each sequence once; the base class divides by tensor-parallel ranks itself
        return super().get_total_train_batch_size(args) // self.layout.sequence

    def floating_point_ops(self, inputs: Any) -> float:
        return super().floating_point_ops(inputs) * self._share_of_flops

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Compute the objective's loss; where spikes are skipped, make it NaN before the step's last backward pass, so
        that every engine leaves the step out."""
        self.beat("forward")
        if not self.objective.names:
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        else:
            with self.accelerator.autocast():
                given = self.objective.inputs(model, inputs)
            loss, found = super().compute_loss(model, given, True, num_items_in_batch)
            # as the base class's, the loss of a rank is its sum over the targets of all ranks, times their number
            ranks = (
                self.rank_sync.world // self.layout.tensor
                if self.args.average_tokens_across_devices
                else 1
            )
            self._parts += ranks * self.objective.figures(found).to(self._parts)
        self.beat("backward")
        if not (self.guards.skips_spikes and self.accelerator.gradient_state.sync_gradients):
            return loss
        own = (self._own_loss + loss.detach()).item()
        losses = [numbers[0] for numbers in self.rank_sync.numbers([own])]
        if not self.guards.finds_spike(losses):
            return loss
        self._skipped_loss = loss.detach()
        return loss * math.nan

    def _maybe_log_save_evaluate(
        self, tr_loss: torch.Tensor, grad_norm: Any, *args: Any, **kwargs: Any
    ) -> None:
        """End a step: exchange states, log, save, and stop if any rank was asked to."""
        if self.state.global_step > self._synced:
            self._synced = self.state.global_step
            self._sync_step(grad_norm)
        logged = self._logged_before = self._globalstep_last_logged
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)
        if self._globalstep_last_logged != logged:
            tr_loss.zero_()  # the base class subtracts the sum from itself, and NaN - NaN stays NaN for good
        if self._stop_reason is not None:
            folder = self.saver.finish() or self.saved
            raise Stopped(self.state.global_step, self._stop_reason, lost=folder is None)

    def _sync_step(self, grad_norm: Any) -> None:
        """Exchange how the step went on each rank, and decide on all alike: skip, save, stop."""
        self.beat("agreement")
        asked = take_save_request(Path(self.args.output_dir)) if self.rank_sync.rank == 0 else None
        reason = self._stop.reason if self._stop is not None else None
        loss = self._own_loss.item()
        self._own_loss = torch.zeros_like(self._own_loss)
        norm = math.nan if grad_norm is None else float(grad_norm)
        norm = math.inf if grad_norm is not None and math.isnan(norm) else norm
        own = [
            float(reason is not None),
            float(asked is not None),
            float(self.saver.done),
            loss,
            norm,
        ]
        stops, saves, done, losses, norms = zip(*self.rank_sync.numbers(own), strict=True)
        try:
            self.guards.observe(
                self.state.global_step, losses, norms, self.model_wrapped, self._scaled_skip()
            )
        except StoppedByGuard:
            self.saver.finish()  # of a step before, and good
            raise
        if self.saver.pending and all(done):
            self.saver.finish()
        if any(saves):
            self._save_name = self.rank_sync.first(asked) or None
            self.control.should_save = True
        if self.state.global_step in self.safety.keep_steps:
            self.control.should_save = True
        if any(stops):
            self._stop_reason = self.rank_sync.any(reason)
            self.control.should_save = self.control.should_training_stop = True

    def _scaled_skip(self) -> bool | None:
        if getattr(self.accelerator, "scaler", None) is None:
            return None
        return bool(self.accelerator.optimizer_step_was_skipped)

    def beat(self, phase: str) -> None:
        """Tell the watchdog what this rank is about to do, and in which step: the next one while it is under way."""
        if self.watchdog is not None:
            self.watchdog.beat(self.state.global_step + (phase in _WITHIN), phase)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            # figures since the last logging step; the first ones start with training, model set-up excluded
            step = self.state.global_step
            device = self.args.device
            steps_per_second, remaining = self.clock.lap(step, self.state.max_steps)
            speed = self.tokens_per_step * steps_per_second
            measured = {
                "tokens_per_second": speed,
                "mfu": metrics.model_flops_utilisation(
                    speed, self.flops_per_token, self.args.world_size, device
                ),
                "memory_bytes": metrics.memory_bytes(device),
                "eta_seconds": remaining,
                "skipped": self.skipped_steps,
                "tokens": step * self.tokens_per_step,
            }
            # trackers warn of a None each time, so what is not available is left out
            logs = logs | {name: value for name, value in measured.items() if value is not None}
            logs["learning_rate"] = self._rates[0]
            if self.optimization.position_learning_rate is not None:  # their group is the last
                logs["position_learning_rate"] = self._rates[-1]
            if self.objective.names:
                steps = self.state.global_step - self._logged_before
                sums = zip(*self.rank_sync.numbers(self._parts.tolist()), strict=True)
                for name, own in zip(self.objective.names, sums, strict=True):
                    logs[name] = sum(own) / len(own) / steps
                self._parts.zero_()
        # the base class divides the sum over all steps by those since the resume
        if "train_loss" in logs:
            logs = logs | {"train_loss": self._total_loss_scalar / max(self.state.global_step, 1)}
        super().log(logs, start_time)

    def start_clock(self) -> None:
        processes.reset_peak_memory(self.args.device)
        self.clock.start(self.state.global_step)
