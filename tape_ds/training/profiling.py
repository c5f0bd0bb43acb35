"""A few steps of a run, recorded by torch's profiler: ``--profile``.

Files in the run's folder, for each rank that records:

    profile/trace_rank0.json.gz      for chrome://tracing or ui.perfetto.dev
    profile/memory_rank0.pickle      CUDA: every allocation, for https://pytorch.org/memory_viz
    profile/summary_rank0.md         operators by time; that of the first rank that records is printed
"""

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, schedule
from transformers import TrainerCallback, TrainerState

from tape_ds import storage
from tape_ds.config.sections import Profile
from tape_ds.run_folder import PROFILE
from tape_ds.training.environment import say
from tape_ds.training.trainer import TapeTrainer

ROWS = 20
"""Operators in the summary."""


class StepProfiler(TrainerCallback):
    """Records the steps that a recipe names, on the ranks that it names, in the run's folder ``output``."""

    def __init__(self, trainer: TapeTrainer, profile: Profile, output: Path):
        self.trainer = trainer
        self.profile = profile
        self.folder = output / PROFILE
        self.rank = trainer.args.process_index
        self.recorded = False
        self._profiler: torch.profiler.profile | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.rank not in self.profile.profile_ranks:
            return
        on_cuda = args.device.type == "cuda"
        if on_cuda:
            torch.cuda.memory._record_memory_history(stacks="python")
        before = self.profile.profile_start - 1
        # its first step costs the profiler more than others
        warmup = min(before, 1)
        self._profiler = torch.profiler.profile(
            activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_cuda,
            schedule=schedule(
                skip_first=before - warmup,
                wait=0,
                warmup=warmup,
                active=self.profile.profile_steps,
                repeat=1,
            ),
            on_trace_ready=self._store,
            record_shapes=True,
        )
        self._profiler.start()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self._profiler is not None and state.global_step < state.max_steps:
            self._profiler.step()
            if self.recorded:
                self._end()

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self._profiler is not None:
            self._end()
            if not self.recorded:
                say(
                    f"rank {self.rank} recorded no profile: the run ended before step {self.profile.profile_start}"
                )

    def _end(self) -> None:
        assert self._profiler is not None
        profiler = self._profiler
        self._profiler = None
        profiler.stop()
        if self.trainer.args.device.type == "cuda":
            torch.cuda.memory._record_memory_history(enabled=None)

    def _store(self, profiler: torch.profiler.profile) -> None:
        self.recorded = True
        self.trainer.beat("profiling")
        path = self.folder / f"trace_rank{self.rank}.json.gz"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
            if self.trainer.args.device.type == "cuda":
                torch.cuda.memory._dump_snapshot(
                    str(self.folder / f"memory_rank{self.rank}.pickle")
                )
            text = f"profile of rank {self.rank}: {path}\n\n{summarise(profiler)}"
            storage.write_text(self.folder / f"summary_rank{self.rank}.md", text + "\n")
        except OSError as error:
            say(f"PROFILE NOT STORED: {storage.explain(error, self.folder)}; the run continues")
            return
        if self.rank == min(self.profile.profile_ranks):
            say(text)


def summarise(profiler: torch.profiler.profile) -> str:
    steps = [event for event in profiler.events() or [] if event.name.startswith("ProfilerStep")]
    mean = sum(event.time_range.elapsed_us() for event in steps) / len(steps) / 1e3
    averages = profiler.key_averages()
    clock = "cpu"
    if any(row.self_device_time_total for row in averages):
        clock = "device"
    table = averages.table(sort_by=f"self_{clock}_time_total", row_limit=ROWS)
    note = "The profiler makes them slower than others."
    return f"{len(steps)} steps of {mean:,.1f} ms. {note}\n\n```\n{table}```"
