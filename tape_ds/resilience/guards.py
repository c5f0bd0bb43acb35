"""Numbers that are not finite: found on whichever rank they are, said on rank 0, counted, and ended after too many.

A NaN on one rank is in every rank's gradient after the reduction, while the losses of the others look healthy. What
takes steps under DeepSpeed then mostly leaves the step out by itself (:func:`protects_itself`); where nothing does,
:func:`protect` leaves it out. :class:`NonFinite` tells what happened, and to which samples.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer

from tape_ds import storage
from tape_ds.numbers import stretches

SHOWN = 6
"""Stretches of samples that a message names; the file names all."""


class StoppedByGuard(RuntimeError):  # noqa: N818 - it is no error of the program
    """Raised on all ranks at once when going on makes no sense; ``str()`` is the message a user reads."""


class NonFinite:
    """Counts the steps whose loss or gradient was not finite on some rank.

    Every rank holds one and gives it the same numbers, so that all of them stop at the same step.

    Args:
        limit: so many such steps in a row stop the run; 0: never.
        file: gets a line of JSON for each of them, on the rank that writes; None on the others. A journal: a step that
            a resumed run does again is in it again.
        samples_of: the sample numbers that a rank was given in an optimizer step, counted from 0
            (see :func:`samples_of_step`).
    """

    def __init__(self, limit: int, file: Path | None, samples_of: Callable[[int, int], list[int]]):
        self.limit = limit
        self.file = file
        self.samples_of = samples_of
        self.total = 0
        """Such steps since the run's first step."""
        self.in_a_row = 0
        """Such steps up to the last one seen; 0 where that one was finite."""
        self._complained = False

    def observe(
        self, step: int, losses: Sequence[float], grad_norms: Sequence[float], skipped: bool, *, rescaled: bool = False
    ) -> str | None:
        """Take in one optimizer step.

        Args:
            step: its number as the metrics line shows it, from 1.
            losses: every rank's loss, by rank.
            grad_norms: every rank's gradient norm, by rank; infinite where it was measured and is not finite, NaN where
                it was not measured. Norms of the reduced gradient are the same everywhere, and tell of no rank.
            skipped: whether the step was left out.
            rescaled: whether leaving it out has lowered fp16's loss scale. That is how fp16 finds its scale: with
                finite losses it is said, and not counted.

        Returns:
            What a person should read; None where all was finite.

        Raises:
            StoppedByGuard: this was the last of ``limit`` such steps in a row.
        """
        ranks = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
        kind = "loss" if ranks else "gradient"
        if kind == "gradient":
            if not skipped and not any(math.isinf(norm) for norm in grad_norms):
                self.in_a_row = 0
                return None
            if skipped and rescaled:
                self.in_a_row = 0
                return f"step {step}: SKIPPED, fp16's loss scale was too large and is lowered; weights unchanged"
            ranks = [rank for rank, norm in enumerate(grad_norms) if math.isinf(norm)]
            ranks = ranks if len(ranks) < len(losses) or len(losses) == 1 else []
        self.total += 1
        self.in_a_row += 1
        samples = {rank: self.samples_of(step - 1, rank) for rank in ranks or range(len(losses))}
        self._write(step, kind, ranks, samples, skipped)
        where = "some rank" if not ranks else f"rank{'s' if len(ranks) > 1 else ''} {', '.join(stretches(ranks))}"
        what = f"a gradient on {where} is not finite"
        if kind == "loss":
            values = {"NaN" if math.isnan(losses[rank]) else "infinite" for rank in ranks}
            what = f"the loss on {where} is {values.pop() if len(values) == 1 else 'not finite'}"
        bad = {number for each in samples.values() for number in each}
        numbers = stretches(bad)
        if len(numbers) > SHOWN:
            numbers[SHOWN:] = [f"... ({len(bad)} in all)"]
        outcome = "step SKIPPED, weights unchanged" if skipped else "step NOT skipped, weights may be damaged"
        counts = f"{self.total} so far, {self.in_a_row} in a row"
        message = f"step {step}: {what} (samples {', '.join(numbers)}); {outcome} ({counts})"
        if self.limit and self.in_a_row >= self.limit:
            named = "" if self.file is None else f"; {self.file} names the samples"
            raise StoppedByGuard(
                f"{message}\nstopped: {self.in_a_row} steps in a row were not finite (nonfinite_limit){named}. "
                "Resume an earlier checkpoint with a lower learning_rate or max_grad_norm (--resume_anyway), or look "
                "at those samples."
            )
        return message

    def state(self) -> dict[str, int]:
        """Return what a checkpoint keeps of it."""
        return {"total": self.total, "in_a_row": self.in_a_row}

    def load_state(self, state: dict[str, int]) -> None:
        """Go on counting from :meth:`state`."""
        self.total, self.in_a_row = state["total"], state["in_a_row"]

    def _write(self, step: int, kind: str, ranks: list[int], samples: dict[int, list[int]], skipped: bool) -> None:
        """Append a line. A disk that is full or away must not end a run: that is said once."""
        if self.file is None:
            return
        entry = {"step": step, "kind": kind, "ranks": ranks, "samples": samples, "skipped": skipped}
        entry |= {"in_a_row": self.in_a_row, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            if not self._complained:
                why = storage.explain(error, self.file.parent)
                print(f"{self.file.name} cannot be written, training goes on: {why}", file=sys.stderr, flush=True)
            self._complained = True


def samples_of_step(step: int, rank: int, *, global_batch: int, micro_batch: int, world: int) -> list[int]:
    """Return numbers of the samples that ``rank`` is given in optimizer step ``step``, both counted from 0.

    The trainer's loader cuts the samples, in order, into micro-batches and deals these out to the ranks in turn.

    Args:
        step: the optimizer step.
        rank: the rank.
        global_batch: samples of a step over all ranks, a multiple of ``micro_batch * world``.
        micro_batch: samples of one forward pass of one rank.
        world: ranks that are given different samples.
    """
    begin = step * global_batch + rank * micro_batch
    stride = micro_batch * world
    return [begin + turn * stride + i for turn in range(global_batch // stride) for i in range(micro_batch)]


class SkipCounter:
    """What :func:`protect` has done."""

    def __init__(self) -> None:
        self.total = 0
        """Steps left out since the run's first step."""
        self.skipped = False
        """Whether the last step was left out."""

    def state(self) -> dict[str, int]:
        """Return what a checkpoint keeps of it."""
        return {"total": self.total}

    def load_state(self, state: dict[str, int]) -> None:
        """Go on counting from :meth:`state`."""
        self.total = state["total"]


def protect(optimizer: torch.optim.Optimizer) -> SkipCounter:
    """Let every step of ``optimizer`` whose gradients are not all finite change nothing, neither weights nor state.

    For an optimizer that is given whole, reduced gradients: one without an engine, under DDP, or of DeepSpeed's stage 0
    in fp32. There every rank sees the same gradients, so all decide alike without asking each other. It costs one
    reading of the gradients a step.

    Args:
        optimizer: any of torch's; what accelerate wraps around one is looked through.

    Returns:
        The count of the steps left out.
    """
    while isinstance(optimizer, AcceleratedOptimizer):  # has no hooks of its own
        optimizer = optimizer.optimizer
    counter = SkipCounter()

    def leave_out(stepping: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [parameter for group in stepping.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # the largest magnitude: unlike a sum of squares, it cannot overflow where every gradient is finite
        counter.skipped = bool(gradients) and not math.isfinite(torch.nn.utils.get_total_norm(gradients, math.inf))
        if counter.skipped:
            counter.total += 1
            for parameter in parameters:
                parameter.grad = None

    optimizer.register_step_pre_hook(leave_out)
    return counter


def protects_itself(engine: Any | None) -> bool:
    """Return whether ``engine`` leaves out steps whose gradients are not finite, on all ranks alike, and counts them.

    DeepSpeed's ZeRO stages do, and so do its optimizers for bf16 and fp16 without ZeRO. In fp32 without ZeRO the engine
    calls torch's optimizer as it is: NaN would go into every weight. So it does under ZeRO 1 and 2 when the engine's
    settings turn the check off (``bf16.check_grad_overflow``, in fp32 ``zero_optimization.compute_grad_norm``); there
    each rank holds another part of the gradient, and :func:`protect` is no help.

    Args:
        engine: a DeepSpeed engine; None where there is none.
    """
    optimizer: Any = getattr(engine, "optimizer", None)
    if not hasattr(optimizer, "overflow"):
        return False
    if getattr(optimizer, "check_grad_overflow", True):
        return True
    return optimizer.dtype != torch.bfloat16 and bool(optimizer.compute_grad_norm)
