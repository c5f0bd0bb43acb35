"""Callbacks of a run: progress on the terminal, metrics in a file, memory savings, and the trained weights."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerState

from tape_ds import storage
from tape_ds.checkpoint import averaging
from tape_ds.checkpoint.trained import replace_trained
from tape_ds.config.recipe import Recipe
from tape_ds.config.sections import Memory
from tape_ds.data.mix import MixedSequences
from tape_ds.distributed import processes
from tape_ds.errors import disk_error, redacted
from tape_ds.methods.compiled_blocks import compile_model
from tape_ds.methods.memory_savings import MemorySavings
from tape_ds.scoring.inspection import measure_updates
from tape_ds.scoring.losses import bare
from tape_ds.training import metrics
from tape_ds.training.environment import say
from tape_ds.training.trainer import TapeTrainer


class Progress(TrainerCallback):
    """One line per logging step on the terminal, the same dict as a line of ``metrics.jsonl``, and a progress bar."""

    def __init__(self, trainer: TapeTrainer, file: Path):
        self.trainer = trainer
        self.file = file
        self.bar: tqdm | None = None
        self.peak = 0
        self.lost = 0
        """Lines that could not be stored."""

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.trainer.start_clock()
        if state.is_world_process_zero:
            # keep the lines up to this step: later ones are an earlier run's, or are about to be run again
            self.file.parent.mkdir(parents=True, exist_ok=True)
            resumed = state.global_step > 0 and self.file.exists()
            kept = []
            for line in self.file.read_text().splitlines(keepends=True) if resumed else []:
                # a line that a full disk cut off
                with contextlib.suppress(ValueError):
                    if line.endswith("\n") and json.loads(line)["step"] <= state.global_step:
                        kept.append(line)
            storage.write_text(self.file, "".join(kept))
            # None: shown on a terminal only
            hidden = args.disable_tqdm or None
            self.bar = tqdm(
                total=state.max_steps, initial=state.global_step, disable=hidden, unit="step"
            )

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # read before scoring can need more
        self.peak = processes.peak_memory_bytes(args.device)
        if self.bar is not None:
            self.bar.update(1)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: Any,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if self.bar is None or not logs or "loss" not in logs:
            return
        # every line has every key
        entry = {"step": state.global_step, "grad_norm": None, "mfu": None, **logs}
        try:
            with self.file.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:  # a full disk costs the line, and the run continues
            if not self.lost:
                self._print(
                    f"METRICS NOT STORED: {storage.explain(error, self.file.parent)}; the run continues"
                )
            self.lost += 1
        short = {"learning_rate": "lr", "position_learning_rate": "position lr"}
        hidden = ("epoch", "tokens", PositionUpdates.NAME, TokensBySource.NAME)
        shown = {short.get(key, key): value for key, value in entry.items() if key not in hidden}
        self._print(metrics.line(shown, state.max_steps))

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        peaks = self.trainer.rank_sync.numbers([float(self.peak or 0)])
        self.trainer.peak_memory_bytes = int(max(peak for (peak,) in peaks)) or None
        if self.bar is not None:
            self.bar.close()

    def _print(self, text: str) -> None:
        if self.bar is not None:
            self.bar.write(text, file=sys.stdout)
        sys.stdout.flush()


class TokensBySource(TrainerCallback):
    """Adds the tokens that each source of mixed data has given so far to the metrics; they follow from the step."""

    NAME = "tokens_by_source"

    def __init__(self, sequences: MixedSequences, step_sequences: int):
        self.sequences = sequences
        self.step_sequences = step_sequences

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: Any,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs and "loss" in logs and state.is_world_process_zero:
            found = self.sequences.tokens(state.global_step * self.step_sequences)
            logs[self.NAME] = {redacted(spec): tokens for spec, tokens in found.items()}


class PositionUpdates(TrainerCallback):
    """Adds :func:`tape_ds.scoring.inspection.measure_updates` to the metrics about eight times in a run, on the first
    tokens of its first sequence; on every rank together."""

    TIMES = 8
    TOKENS = 512
    NAME = "position_updates"

    def __init__(self, sequence: Mapping[str, Tensor]):
        self.ids, self.places = sequence["input_ids"][: self.TOKENS], sequence.get("position_ids")

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: Any,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or "loss" not in logs:
            return
        # the state's interval, in steps: the recipe's may be a share of the run
        now = state.global_step
        before = max(0, state.global_step - state.logging_steps)
        if now * self.TIMES // state.max_steps == before * self.TIMES // state.max_steps:
            return
        places = None if self.places is None else self.places[: self.TOKENS]
        found = measure_updates(bare(kwargs["model"]), self.ids, places)._asdict()
        logs[self.NAME] = state.log_history[-1][self.NAME] = found


class ApplyMemorySavings(TrainerCallback):
    """Applies a recipe's memory savings when training begins, after transformers has switched its checkpointing on, and
    warns after the first step of those without effect."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self.savings: MemorySavings | None = None
        self.checked = False

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # transformers before 5.23 has no other name
        checkpointing = bool(args.gradient_checkpointing)
        self.savings = MemorySavings(
            kwargs["model"], self.memory, checkpointing=checkpointing, device=args.device
        )
        for line in self.savings.outline() if state.is_world_process_zero else []:
            say(f"memory: {line}")

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.savings is not None and not self.checked and state.is_world_process_zero:
            self.checked = True
            for line in self.savings.without_effect():
                say(f"memory: {line}")


class CompileModel(TrainerCallback):
    """Compiles the model when training begins, after its memory savings."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        line = compile_model(
            kwargs["model"],
            backend=self.recipe.trainer.torch_compile_backend,
            mode=self.recipe.trainer.torch_compile_mode,
        )
        if state.is_world_process_zero:
            say(line)


class AverageLast(TrainerCallback):
    """Puts the mean of the last ``count`` checkpoints into the model when training ends, before it is saved and scored;
    on every rank together. Where a checkpoint is missing or damaged, the last step's weights stay, and that is said."""

    def __init__(self, trainer: TapeTrainer, output: Path, count: int):
        self.trainer = trainer
        self.output = output
        self.count = count

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        # not those of other steps: where a run was stopped and resumed, it would end with another mean
        steps = averaging.scheduled(
            state.max_steps, int(state.save_steps), trainer.safety.keep_steps
        )[-self.count :]
        folders: list[Path] = []
        wrong = None
        if trainer.rank_sync.rank == 0:
            try:
                folders = averaging.last(self.output, steps)
            except ValueError as error:
                wrong = str(error)
        wrong = trainer.rank_sync.first(wrong)
        folders = trainer.rank_sync.first(folders)
        shown = ", ".join(f"checkpoint-{step}" for step in steps)
        if wrong is not None:
            if state.is_world_process_zero:
                say(
                    f"THE MEAN of {shown} IS NOT TAKEN: {wrong}; trained/ and the scores are those of the last step"
                )
            return
        averaging.put_mean(folders, trainer.model, trainer.record.names)
        trainer.record = dataclasses.replace(
            trainer.record, averaged=averaging.fingerprints(folders)
        )
        if state.is_world_process_zero:
            say(f"the trained weights are the mean of {shown}")


class SaveTrained(TrainerCallback):
    """Writes the folder of trained weights as soon as training ends: before anything that could still fail.

    The file ``outdated`` has the results of the weights that were there before, and is removed with them.
    """

    def __init__(self, trainer: TapeTrainer, folder: Path, outdated: Path):
        self.trainer = trainer
        self.folder = folder
        self.outdated = outdated

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.outdated.unlink(missing_ok=True)
        trainer = self.trainer
        try:
            replace_trained(self.folder, trainer.model, trainer.record, trainer.processing_class)
        except Exception as error:
            refused = disk_error(
                error, "output_dir", self.folder, "then start it again with --resume auto"
            )
            if refused is None:
                raise
            raise refused from error
