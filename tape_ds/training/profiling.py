"""A few steps of a run, recorded by torch's profiler: what ``--profile`` does.

What it leaves in the run's folder, for each rank that records:

    profile/trace_rank0.json.gz      for chrome://tracing or ui.perfetto.dev
    profile/memory_rank0.pickle      CUDA: every allocation, for https://pytorch.org/memory_viz
    profile/summary_rank0.md         where time went; that of the first rank that records is printed
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, record_function, schedule
from transformers import TrainerCallback, TrainerState

from tape_ds import storage
from tape_ds.config.sections import Profile
from tape_ds.encodings.base import PositionEncoding, PositionLayer
from tape_ds.markdown_table import markdown_table
from tape_ds.models.output_head import OutputHead
from tape_ds.training.environment import say
from tape_ds.training.trainer import TapeTrainer

FOLDER = "profile"
PHASES = ("data", "forward", "backward", "optimizer")
ROWS = 20
"""Operators that the summary names."""
_PHASE, _PART = "phase: ", "part: "
_STEP = "ProfilerStep"  # torch's own mark around each step
_BACKWARD = "autograd::engine::evaluate_function"
_COLLECTIVES = ("gloo:", "nccl", "ncclDevKernel", "ncclKernel")
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
        self.recorded = False
        self._profiler: torch.profiler.profile | None = None
        self._undo: list[Callable[[], None]] = []

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Set the profiler's schedule and name what a step consists of."""
        if self.rank not in self.profile.profile_ranks:
            return
        on_cuda = args.device.type == "cuda"
        if on_cuda:
            torch.cuda.memory._record_memory_history(stacks="python")
        self._undo = [_mark(*each) for each in marks_of(self.trainer)]
        before = self.profile.profile_start - 1
        warmup = min(before, 1)  # its first step costs the profiler more than others
        self._profiler = torch.profiler.profile(
            activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_cuda,
            schedule=schedule(
                skip_first=before - warmup, wait=0, warmup=warmup, active=self.profile.profile_steps, repeat=1
            ),
            on_trace_ready=self._store,
            record_shapes=True,
        )
        self._profiler.start()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Tell the profiler; behind the last step that is recorded, leave nothing of it."""
        if self._profiler is not None and state.global_step < state.max_steps:
            self._profiler.step()
            if self.recorded:
                self._end()

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Store what there is where the run ends within the recorded steps; say so where it ends before them."""
        if self._profiler is not None:
            self._end()
            if not self.recorded:
                say(f"rank {self.rank} recorded no profile: the run ended before step {self.profile.profile_start}")

    def _end(self) -> None:
        assert self._profiler is not None
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        for undo in reversed(self._undo):
            undo()
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
                torch.cuda.memory._dump_snapshot(str(self.folder / f"memory_rank{self.rank}.pickle"))
            text = f"profile of rank {self.rank}: {path}\n\n{summarise(profiler)}"
            storage.write_text(self.folder / f"summary_rank{self.rank}.md", text + "\n")
        except OSError as error:
            say(f"PROFILE NOT STORED: {storage.explain(error, self.folder)}; the run goes on")
            return
        if self.rank == min(self.profile.profile_ranks):
            say(text)


def marks_of(trainer: TapeTrainer) -> Iterator[tuple[Any, str, str]]:
    """Yield object, method and name of everything that is named in the trace: phases of a step, parts of the model."""
    yield trainer, "get_batch_samples", _PHASE + "data"
    yield trainer, "compute_loss", _PHASE + "forward"
    yield trainer.accelerator, "backward", _PHASE + "backward"
    yield (trainer.model_wrapped if trainer.is_deepspeed_enabled else trainer.optimizer), "step", _PHASE + "optimizer"
    for module in trainer.model.modules():
        yield from ((module, method, _PART + name) for method, name in _methods(module).items())


def _methods(module: nn.Module) -> dict[str, str]:
    """Methods of a module that are a part of the model -> the part's name."""
    if isinstance(module, PositionLayer):
        return _HOOKS
    if isinstance(module, PositionEncoding):
        return {"start": "positions"}
    if isinstance(module, OutputHead):
        return {"forward": "head and loss"}
    kind = type(module).__name__
    name = next((name for ending, name in _CLASSES if kind.endswith(ending)), None)
    return {} if name is None else {"forward": name}


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


def summarise(profiler: torch.profiler.profile) -> str:
    """Return where the time of the recorded steps went, as Markdown: phases, parts of the model, operators.

    A backward operator belongs to the part of the forward operator with its sequence number, by which torch ties the
    two. Times are an operator's own, without what it calls, so that they add up; on a GPU they are its kernels'.
    """
    events = [event for event in profiler.events() or [] if event.device_type == torch.autograd.DeviceType.CPU]
    on_device = any(event.self_device_time_total for event in events)
    steps = [event for event in events if event.name.startswith(_STEP)]
    whole = sum(event.time_range.elapsed_us() for event in steps)
    phases = dict.fromkeys((*PHASES, "other"), 0.0)
    phases["other"] = whole
    parts: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys((*PHASES, "other"), 0.0))
    made_in: dict[int, str] = {}
    for event in sorted(events, key=lambda event: event.time_range.start):
        phase, part = _phase_around(event), _part_around(event, made_in)
        if event.name.startswith(_PHASE):
            # an engine steps within its backward: each moment counts for the innermost mark
            phases[phase] += event.time_range.elapsed_us()
            phases[_phase_around(event.cpu_parent)] -= event.time_range.elapsed_us()
        is_main = event.thread == steps[0].thread
        if is_main and event.sequence_nr >= 0:
            made_in[event.sequence_nr] = part  # the last one with a number makes the node; others only ask for it
        if on_device or is_main:  # on a CPU, the main thread waits for all others
            parts[part][phase] += event.self_device_time_total if on_device else event.self_cpu_time_total
    averages = profiler.key_averages()
    clock = "device" if on_device else "cpu"
    return "\n\n".join(
        [
            f"{len(steps)} steps of {whole / len(steps) / 1e3:,.1f} ms. The profiler makes them slower than others.",
            _table("phase", {name: {"all": time} for name, time in phases.items()}, len(steps)),
            _table("kernels" if on_device else "part", parts, len(steps)),
            _collectives(averages, len(steps)),
            "```\n" + averages.table(sort_by=f"self_{clock}_time_total", row_limit=ROWS) + "```",
        ]
    )


def _around(event: FunctionEvent | None) -> Iterator[FunctionEvent]:
    """Yield an operator, what called it, and so on."""
    while event is not None:
        yield event
        event = event.cpu_parent


def _phase_around(event: FunctionEvent | None) -> str:
    for each in _around(event):
        if each.name.startswith(_PHASE):
            return each.name.removeprefix(_PHASE)
        if each.name.startswith(_BACKWARD) and each.cpu_parent is None:  # on a GPU the backward has its own thread
            return "backward"
    return "other"


def _part_around(event: FunctionEvent, made_in: Mapping[int, str]) -> str:
    for each in _around(event):
        if each.name.startswith(_PART):
            return each.name.removeprefix(_PART)
        if each.name.startswith(_BACKWARD):
            return made_in.get(each.sequence_nr, "other")
    return "other"


def _table(head: str, rows: Mapping[str, Mapping[str, float]], steps: int) -> str:
    """Markdown: milliseconds a step by column, all of them, and the share; the largest row first."""
    columns = [name for name in (*PHASES, "other") if any(times.get(name) for times in rows.values())]
    totals = {name: sum(times.values()) for name, times in rows.items()}
    lines = []
    for name, total in sorted(totals.items(), key=lambda pair: -pair[1]):
        cells = [f"{rows[name].get(column, 0) / steps / 1e3:,.1f}" for column in columns]
        share = f"{total / max(sum(totals.values()), 1e-9):.0%}"
        lines.append([name, *cells, f"{total / steps / 1e3:,.1f}", share])
    return markdown_table([f"{head}, ms a step", *columns, "all", "share"], lines)


def _collectives(averages: Iterable[Any], steps: int) -> str:
    found = [each for each in averages if each.key.startswith(_COLLECTIVES)]
    if not found:
        return "No collective ran."
    times = [max(each.cpu_time_total, each.device_time_total) / steps / 1e3 for each in found]
    rows = [
        [each.key[:60], f"{each.count / steps:,.1f}", f"{time:,.1f}"] for each, time in zip(found, times, strict=True)
    ]
    return markdown_table(["collective", "count a step", "ms a step"], rows)
