"""transformers' ``Trainer``, fitted to this project in seven places and nowhere else.

Samples come in their own order; saved folders hold only what was trained; an engine checkpoint leaves frozen weights
out and is resumed that way; one dict of metrics per logging step; a step that the engine skips is counted; what decays
goes by shape; a schedule finds the learning rate that it starts from.
"""

import time
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DeepSpeedSchedulerWrapper
from peft import PeftModel
from torch import nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import Trainer, TrainerControl
from transformers.integrations.deepspeed import deepspeed_load_checkpoint
from transformers.trainer import SCHEDULER_NAME

from tape_ds.errors import Problem, UserError
from tape_ds.training import metrics, trained
from tape_ds.training.methods import assert_trainable
from tape_ds.training.trained import Record


class TapeTrainer(Trainer):
    """A Trainer for a model of which the parameters ``record.names`` are trained.

    Args:
        record: what goes into every saved folder; its names are asserted against the model.
        tokens_per_step: tokens of one optimizer step, over all ranks.
        flops_per_token: training FLOPs of the model per token, for MFU.
        arguments: for ``Trainer``; the training set serves samples in order (see ``tape_ds.data.dataset``).
    """

    def __init__(self, *, record: Record, tokens_per_step: int, flops_per_token: float, **arguments: Any):
        super().__init__(**arguments)
        assert_trainable(self.model, record.names)
        self.record = record
        self.tokens_per_step = tokens_per_step
        self.flops_per_token = flops_per_token
        self.peak_memory_bytes: int | None = None
        """The most that any rank needed while it trained; known when training has ended."""
        self._clock: tuple[int, float] | None = None
        self._begin: tuple[int, float] | None = None

    @property
    def skipped_steps(self) -> int:
        """Optimizer steps the engine has skipped so far, on all ranks alike, because a gradient was not finite."""
        return int(getattr(self.model_wrapped, "skipped_steps", 0))

    def go_without_training(self) -> None:
        """What surrounds training (scoring, saving), without a step between: for a method that trains nothing."""
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.is_local_process_zero = self.is_local_process_zero()
        control = self.callback_handler.on_train_begin(self.args, self.state, TrainerControl())
        self.callback_handler.on_train_end(self.args, self.state, control)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Weight decay pulls on matrices, embeddings and position updates among them; never on vectors and numbers
        (norms, biases, scales), whose size is not a matter of complexity. transformers goes by names instead."""
        shapes = {name: getattr(parameter, "ds_shape", parameter.shape) for name, parameter in model.named_parameters()}
        return [name for name, shape in shapes.items() if len(shape) > 1]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Some schedules (``polynomial``) read where they start from in ``optimizer.defaults``, which an engine's
        optimizer does not have; the one inside does."""
        engine = getattr(self.optimizer if optimizer is None else optimizer, "optimizer", None)
        if engine is not None and not hasattr(engine, "defaults"):
            engine.defaults = engine.optimizer.defaults
        return super().create_scheduler(num_training_steps, optimizer)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler:
        # sample i is already a function of (seed, i): any shuffling here would undo what makes a run resumable
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None
    ) -> tuple[Any, Any]:
        """Resume an engine without frozen weights: the base class would ask for every weight of the model."""
        if resume_from_checkpoint is None or not self.is_deepspeed_enabled:
            return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self._require_same_record(resume_from_checkpoint)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        deepspeed_load_checkpoint(self.model_wrapped, resume_from_checkpoint, load_module_strict=False)
        self._load_optimizer_and_scheduler(resume_from_checkpoint)
        self._load_scaler(resume_from_checkpoint)
        return prepared

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Without an engine the weights come back from the trained folder."""
        self._require_same_record(resume_from_checkpoint)
        trained.apply_trained(resume_from_checkpoint, self.model if model is None else model, self.record.names)

    def _require_same_record(self, folder: str) -> None:
        saved = trained.read_record(folder)
        fields = [name for name in ("base", "method", "names") if getattr(saved, name) != getattr(self.record, name)]
        bare = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        fields += trained.differing_fields(folder, bare.config)
        if isinstance(self.model, PeftModel) and saved.method == self.record.method:
            fields += trained.differing_adapters(folder, self.model)
        if fields:
            wrong = f"it was saved by a run that differs in {', '.join(fields)}"
            remedy = "resume with the recipe of that run, or start in another output_dir"
            raise UserError(Problem("resume_from_checkpoint", folder, wrong, remedy))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write a trained folder; every rank takes part in gathering it."""
        folder = output_dir or self.args.output_dir
        trained.save_trained(folder, self.model, self.record, self.processing_class)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_deepspeed_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        self.model_wrapped.save_checkpoint(output_dir, exclude_frozen_parameters=True)
        if self.args.should_save and not isinstance(self.lr_scheduler, DeepSpeedSchedulerWrapper):
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Start each mean at zero: the base class subtracts the sum from itself, and NaN - NaN stays NaN for good."""
        logged = self._globalstep_last_logged
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)
        if self._globalstep_last_logged != logged:
            tr_loss.zero_()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add speed, use of the hardware, memory and skipped steps to the metrics of a logging step."""
        if "loss" in logs:  # trackers warn of a None each time, so what is not available is left out
            logs = logs | {name: value for name, value in self._measure().items() if value is not None}
        super().log(logs, start_time)

    def _measure(self) -> dict[str, Any]:
        """Figures since the last logging step; the first ones start with training, model set-up excluded."""
        step, now = self.state.global_step, time.perf_counter()
        before = self._clock or (step, now)
        self._clock = (step, now)
        begin = self._begin or before
        speed = metrics.tokens_per_second((step - before[0]) * self.tokens_per_step, now - before[1])
        device = self.args.device
        peak = metrics.device_peak_flops(device)
        return {
            "tokens_per_second": speed,
            "mfu": metrics.model_flops_utilisation(speed, self.flops_per_token, self.args.world_size, peak),
            "memory_bytes": metrics.memory_bytes(device),
            "eta_seconds": metrics.eta_seconds(step - begin[0], self.state.max_steps - begin[0], now - begin[1]),
            "skipped": self.skipped_steps,
            "tokens": step * self.tokens_per_step,
        }

    def start_clock(self) -> None:
        """Begin to measure: called when the first step is about to run."""
        metrics.reset_peak_memory(self.args.device)
        self._clock = self._begin = (self.state.global_step, time.perf_counter())
