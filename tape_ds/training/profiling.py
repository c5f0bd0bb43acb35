"""A few steps of a run, recorded: what ``--profile`` does.

While they last, torch's profiler runs, and marks lie around the phases of a step and the parts of the model; before and
after, nothing of it is there, and a step costs what it always does. What it leaves in the run's folder, for each rank
that records:

    profile/trace_rank0.json.gz      for chrome://tracing or ui.perfetto.dev
    profile/memory_rank0.html        CUDA: every allocation over time, with its stack; opens in a browser
    profile/summary_rank0.json       where time and memory went, and what was communicated (tape_ds.results)
    profile/summary_rank0.md         the same to read; rank 0's, or that of the first rank that records, is printed
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function
from transformers import TrainerCallback, TrainerState

from tape_ds import results, storage
from tape_ds.model.output_head import OutputHead
from tape_ds.model.positions.base import PositionEncoding, PositionLayer
from tape_ds.training import trace
from tape_ds.training.environment import say
from tape_ds.training.recipe.profile import Profile
from tape_ds.training.trainer import TapeTrainer

FOLDER = "profile"
_HOOKS = {
    "rotate": "rotation",
    "carry": "carried state",
    "score_bias": "score bias",
    "next_state": "position updates",
}
"""What an encoding does in a block, by the name of the hook."""
_CLASSES = (("Attention", "attention"), ("MLP", "feed-forward"), ("Norm", "norms"), ("Embedding", "embedding"))
"""Part of a module by the end of its class's name, in every family of models here."""


class StepProfiler(TrainerCallback):
    """Records the steps that a recipe names, on the ranks that it names.

    Args:
        trainer: whose steps they are.
        profile: the recipe's section.
        output: the run's folder.
    """

    def __init__(self, trainer: TapeTrainer, profile: Profile, output: Path):
        self.trainer = trainer
        self.profile = profile
        self.folder = output / FOLDER
        self.rank = trainer.args.process_index
        self.first = 0
        """The step that this process began after."""
        self.began = 0
        """The step that recording began after."""
        self.recording: Recording | None = None
        self.done = False

    @property
    def takes_part(self) -> bool:
        """Whether this rank records."""
        return self.rank in self.profile.profile_ranks

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin, where the first step is recorded already."""
        self.first = state.global_step
        self._look(state)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin or end, where the window does: from the end of one step to the end of another, reading data too."""
        self._look(state)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """A run that ends within the window leaves what there is; one that ends before it says so."""
        if self.recording is not None:
            self._end(state)
        elif self.takes_part and not self.done:
            say(f"rank {self.rank} recorded no profile: the run ended before step {self._start + 1}")

    @property
    def _start(self) -> int:
        """The step that recording begins after."""
        return self.first + self.profile.profile_start - 1

    def _look(self, state: TrainerState) -> None:
        if not self.takes_part or self.done:
            return
        if self.recording is None and state.global_step == self._start and state.global_step < state.max_steps:
            self.began = state.global_step
            self.recording = Recording(marks_of(self.trainer), self.trainer.args.device)
        elif self.recording is not None and state.global_step >= self.began + self.profile.profile_steps:
            self._end(state)

    def _end(self, state: TrainerState) -> None:
        assert self.recording is not None
        self.trainer.beat("profiling")
        recording, self.recording, self.done = self.recording, None, True
        recording.stop()
        steps = state.global_step - self.began
        try:
            text = self._store(recording, steps)
        except OSError as error:
            say(f"PROFILE NOT STORED: {storage.explain(error, self.folder)}; the run goes on")
            return
        if self.rank == min(self.profile.profile_ranks):
            say(text)

    def _store(self, recording: "Recording", steps: int) -> str:
        """Write everything; returns the text."""
        self.folder.mkdir(parents=True, exist_ok=True)
        result = results.collect(config=self.profile.flat(), processes=self.trainer.args.world_size)
        path = recording.store(self.folder, self.rank)
        summary = trace.summarise(trace.read(path))
        held = held_bytes(self.trainer)
        named = f"steps {self.began + 1} to {self.began + steps}, rank {self.rank}"
        text = describe(summary, steps, held, f"profile of {named}: {path}")
        figures = {"steps": steps, "held_bytes": held} | dataclasses.asdict(summary)
        results.save(result.finish(figures), self.folder / f"summary_rank{self.rank}.json")
        storage.write_text(self.folder / f"summary_rank{self.rank}.md", text + "\n")
        return text


Mark = tuple[Any, str, str]
"""Object, the name of its method, and what its time is called in the trace."""


def marks_of(trainer: TapeTrainer) -> list[Mark]:
    """The phases of a step, and the parts of the model."""
    engine = trainer.is_deepspeed_enabled
    optimizer = trainer.model_wrapped if engine else trainer.optimizer
    phases = [
        (trainer, "get_batch_samples", "data"),
        (trainer, "compute_loss", "forward"),
        (trainer.accelerator, "backward", "backward"),
        (optimizer, "step", "optimizer"),
    ]
    marks = [(each, method, trace.PHASE + name) for each, method, name in phases]
    return marks + [(each, method, trace.PART + name) for each, method, name in _parts(trainer.model)]


def _parts(model: nn.Module) -> Iterator[Mark]:
    for module in model.modules():
        if isinstance(module, PositionLayer):
            yield from ((module, method, name) for method, name in _HOOKS.items())
        elif isinstance(module, PositionEncoding):
            yield module, "start", "positions"
        elif isinstance(module, OutputHead):
            yield module, "forward", "head and loss"
        else:
            kind = type(module).__name__
            yield from ((module, "forward", name) for ending, name in _CLASSES if kind.endswith(ending))


class Recording:
    """The profiler at work; begins when it is made.

    Args:
        marks: what is named in the trace.
        device: where the model computes.
    """

    def __init__(self, marks: Sequence[Mark], device: torch.device):
        self.on_cuda = device.type == "cuda"
        self.snapshot: Any = None
        self._undo = [_mark(*mark) for mark in marks]
        if self.on_cuda:
            torch.cuda.synchronize(device)
            torch.cuda.memory._record_memory_history(stacks="python")
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.on_cuda
        self._profiler = torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True)
        self._profiler.start()
        self._window = record_function(trace.WINDOW)
        self._window.__enter__()

    def stop(self) -> None:
        """End it, and leave nothing of it behind."""
        if self.on_cuda:
            torch.cuda.synchronize()
        self._window.__exit__(None, None, None)
        self._profiler.stop()
        if self.on_cuda:
            self.snapshot = torch.cuda.memory._snapshot()
            torch.cuda.memory._record_memory_history(enabled=None)
        for undo in reversed(self._undo):
            undo()

    def store(self, folder: Path, rank: int) -> Path:
        """Write the trace, and on CUDA every allocation; returns the trace's path."""
        path = folder / f"trace_rank{rank}.json.gz"
        unfinished = path.with_name(f"unfinished_{path.name}")
        self._profiler.export_chrome_trace(str(unfinished))
        unfinished.replace(path)
        if self.snapshot is not None:
            from torch.cuda import _memory_viz

            storage.write_text(folder / f"memory_rank{rank}.html", _memory_viz.trace_plot(self.snapshot))
        return path


def _mark(of: Any, method: str, name: str) -> Callable[[], None]:
    """Have each call of a method recorded under ``name``; returns what takes it back."""
    original, own = getattr(of, method), method in vars(of)

    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return original(*args, **kwargs)

    def undo() -> None:
        if own:
            setattr(of, method, original)
        else:
            delattr(of, method)

    setattr(of, method, marked)
    return undo


def held_bytes(trainer: TapeTrainer) -> dict[str, int]:
    """Bytes that this rank holds between steps: its share of the weights, and the optimizer's states with the master
    copies of weights among them."""
    weights = [getattr(weight, "ds_tensor", weight) for weight in trainer.model.parameters()]
    optimizer: Any = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    of_the_model = {weight.data_ptr() for weight in weights}
    stepped = [weight for group in optimizer.param_groups for weight in group["params"]]
    states = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    masters = [weight for weight in stepped if weight.data_ptr() not in of_the_model]
    return {"weights": _bytes(weights), "optimizer": _bytes(states) + _bytes(masters)}


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def describe(summary: trace.Summary, steps: int, held: dict[str, int], title: str) -> str:
    """A summary in words and tables; everything for a step."""
    each = summary.window / steps
    lines = [title, "", f"{steps} steps of {each:,.1f} ms. The profiler makes them slower than others.", ""]
    rows = [[name, f"{time / steps:,.1f}", _share(time, summary.window)] for name, time in summary.phases.items()]
    lines += [*_table(["phase", "ms a step", "share"], rows), ""]
    by_part = {part: sum(times.values()) for part, times in summary.parts.items()}
    total = sum(by_part.values())
    shown = [name for name in trace.PHASES if any(times.get(name, 0.0) for times in summary.parts.values())]
    rows = [
        [part]
        + [f"{summary.parts[part].get(name, 0.0) / steps:,.1f}" for name in shown]
        + [f"{time / steps:,.1f}", _share(time, total)]
        for part, time in sorted(by_part.items(), key=lambda pair: -pair[1])
    ]
    clock = "kernels, ms a step" if summary.on_device else "ms a step"
    lines += [*_table([clock, *shown, "all", "share"], rows), ""]
    lines += [*_communication(summary, steps), ""]
    rows = [[f"held between steps: {name}", f"{size / 1e6:,.1f}"] for name, size in held.items()]
    rows += [[f"on top, at the most in {name}", f"{size / 1e6:,.1f}"] for name, size in summary.highest.items() if size]
    lines += [*_table(["memory", "MB"], rows), "", f"The highest of all was reached in: {summary.highest_part}."]
    return "\n".join(lines)


def _communication(summary: trace.Summary, steps: int) -> list[str]:
    if not summary.collectives:
        return ["No collective ran."]
    rows = [
        [
            each.name,
            f"{each.count / steps:,.1f}",
            "N/A" if each.bytes is None else f"{each.bytes / steps / 1e6:,.3f}",
            f"{each.milliseconds / steps:,.1f}",
        ]
        for each in summary.collectives
    ]
    header = ["collective", "count a step", "MB a step", "ms a step"]
    share = _share(summary.communicating, summary.window)
    under_way = (
        f"Under way for {summary.communicating / steps:,.1f} ms a step ({share}), other work beside them or not."
    )
    return [*_table(header, rows), "", under_way]


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "N/A"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown that reads well on a terminal too: names left, numbers right."""
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *others]) + " |"

    rule = "| " + " | ".join(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]) + " |"
    return [line(header), rule, *(line(row) for row in rows)]
