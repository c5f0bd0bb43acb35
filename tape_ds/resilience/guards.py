"""Detect non-finite losses and gradients on any rank; stop after too many.

A NaN on one rank is in every rank's gradient after the reduction, while the losses of the others look healthy. Most of
DeepSpeed's optimizers then skip the step (:func:`protects_itself`); elsewhere :func:`protect` does.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer

from tape_ds import storage
from tape_ds.numbers import stretches

SHOWN = 6
"""Ranges of samples in a message; the file has all of them."""


class StoppedByGuard(RuntimeError):  # noqa: N818 - not an error of the program
    """Raised on all ranks at once if training makes no sense any more; ``str()`` is the message for the user."""


@dataclass
class NonFinite:
    """Counts the steps whose loss or gradient was not finite on some rank. Every rank has one and gives it the same
    numbers, so that all of them stop at the same step."""

    limit: int
    """Number of such steps in a row that stops the run; 0: never."""
    file: Path | None
    """Gets a line of JSON for each, on the rank that writes; None on the others."""
    samples_of: Callable[[int, int], list[int]]
    """Returns the samples of a rank in an optimizer step, both counted from 0 (:func:`samples_of_step`)."""
    total: int = 0
    """Such steps since the run's first step."""
    in_a_row: int = 0
    """Such steps up to the last one."""
    _warned: bool = False

    def observe(
        self,
        step: int,
        losses: Sequence[float],
        grad_norms: Sequence[float],
        skipped: bool,
        *,
        rescaled: bool = False,
    ) -> str | None:
        """Check one optimizer step; return a message if it was not finite.

        Args:
            step: its number as the metrics show it, from 1.
            losses: by rank.
            grad_norms: by rank; infinite if not finite, NaN if not measured. Norms of the reduced gradient are the same
                everywhere, and do not identify a rank.
            skipped: whether the step was skipped.
            rescaled: whether fp16's loss scale was lowered. That is how fp16 finds its scale: with finite losses it is
                reported, and not counted.

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
            # norms of the reduced gradient are the same everywhere: all ranks mean that none is known
            if len(ranks) == len(losses) > 1:
                ranks = []
        self.total += 1
        self.in_a_row += 1
        samples = {rank: self.samples_of(step - 1, rank) for rank in ranks or range(len(losses))}
        if self.file is not None:
            entry = {
                "step": step,
                "kind": kind,
                "ranks": ranks,
                "samples": samples,
                "skipped": skipped,
            }
            entry |= {"in_a_row": self.in_a_row, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
            except OSError as error:
                # must not end a run
                if not self._warned:
                    why = storage.explain(error, self.file.parent)
                    print(
                        f"{self.file.name} cannot be written, training continues: {why}",
                        file=sys.stderr,
                        flush=True,
                    )
                self._warned = True

        where = "some rank"
        if len(ranks) == 1:
            where = f"rank {ranks[0]}"
        elif ranks:
            where = f"ranks {', '.join(stretches(ranks))}"
        what = f"a gradient on {where} is not finite"
        if kind == "loss":
            values = {"NaN" if math.isnan(losses[rank]) else "infinite" for rank in ranks}
            what = f"the loss on {where} is {values.pop() if len(values) == 1 else 'not finite'}"
        numbers = set(chain.from_iterable(samples.values()))
        shown = stretches(numbers)
        if len(shown) > SHOWN:
            shown[SHOWN:] = [f"... ({len(numbers)} in all)"]
        outcome = "step NOT skipped, weights may be damaged"
        if skipped:
            outcome = "step SKIPPED, weights unchanged"
        counts = f"{self.total} so far, {self.in_a_row} in a row"
        message = f"step {step}: {what} (samples {', '.join(shown)}); {outcome} ({counts})"
        if self.limit and self.in_a_row >= self.limit:
            if self.file is None:
                listed = ""
            else:
                listed = f"; {self.file} lists the samples"
            raise StoppedByGuard(
                f"{message}\nstopped: {self.in_a_row} steps in a row were not finite (nonfinite_limit){listed}. "
                "Resume an earlier checkpoint with a lower learning_rate or max_grad_norm (--resume_anyway), or look "
                "at those samples."
            )
        return message

    def state(self) -> dict[str, int]:
        return {"total": self.total, "in_a_row": self.in_a_row}

    def load_state(self, state: dict[str, int]) -> None:
        self.total = state["total"]
        self.in_a_row = state["in_a_row"]


def samples_of_step(
    step: int, rank: int, *, global_batch: int, micro_batch: int, world: int
) -> list[int]:
    """Return the samples of ``rank`` in optimizer step ``step``, all counted from 0.

    The trainer's loader cuts the samples, in order, into micro-batches and deals these out to the ranks in turn:
    ``world`` of them get different samples, and ``global_batch`` is a multiple of ``micro_batch * world``.
    """
    samples: list[int] = []
    # a turn gives each rank a micro-batch
    for turn in range(step * global_batch, (step + 1) * global_batch, micro_batch * world):
        first = turn + rank * micro_batch
        samples += range(first, first + micro_batch)
    return samples


@dataclass
class SkipCounter:
    """Steps that :func:`protect` has skipped."""

    total: int = 0
    """Since the run's first step."""
    skipped: bool = False
    """Whether the last step was skipped."""

    def state(self) -> dict[str, int]:
        return {"total": self.total}

    def load_state(self, state: dict[str, int]) -> None:
        self.total = state["total"]


def protect(optimizer: torch.optim.Optimizer) -> SkipCounter:
    """Skip every step of ``optimizer`` whose gradients are not all finite: neither weights nor state change.

    For an optimizer with whole, reduced gradients: without an engine, under DDP, or DeepSpeed's stage 0 in fp32. Every
    rank then sees the same gradients, and all decide alike without communication. It reads the gradients once a step.
    """
    # a wrapper without hooks
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    counter = SkipCounter()

    def skip(stepping: torch.optim.Optimizer, *_: Any) -> None:
        parameters: list[torch.Tensor] = []
        for group in stepping.param_groups:
            parameters += group["params"]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # the largest magnitude: a sum of squares could overflow although every gradient is finite
        counter.skipped = bool(gradients) and not math.isfinite(
            torch.nn.utils.get_total_norm(gradients, math.inf)
        )
        if counter.skipped:
            counter.total += 1
            # optimizers pass over parameters without a gradient: no decay, and no step of their moments
            for parameter in parameters:
                parameter.grad = None

    optimizer.register_step_pre_hook(skip)
    return counter


def protects_itself(engine: Any | None) -> bool:
    """Return whether a DeepSpeed engine skips steps with non-finite gradients, on all ranks alike, and counts them.

    Its ZeRO stages do, and its bf16 and fp16 optimizers without ZeRO. In fp32 without ZeRO the engine calls torch's
    optimizer directly: NaN would reach every weight. The same holds under ZeRO 1 and 2 if the check is turned off
    (``bf16.check_grad_overflow``, in fp32 ``zero_optimization.compute_grad_norm``); there each rank has another part of
    the gradient, and :func:`protect` would not help.
    """
    optimizer: Any = getattr(engine, "optimizer", None)
    if not hasattr(optimizer, "overflow"):
        return False
    if getattr(optimizer, "check_grad_overflow", True):
        return True
    return optimizer.dtype != torch.bfloat16 and bool(optimizer.compute_grad_norm)
