"""Launches of Triton kernels: static tables of block sizes, and an optional choice by measurement.

Every kernel's file has a table: for a compute capability (80, 90) and a padded head size, the launches that
compile without a spill inside a loop, the default first; ``tools/compile_kernels.py`` proves it without a GPU.
``TAPE_DS_AUTOTUNE=1`` times them on the first call of each shape instead; it is off by default, because the ranks of
one job would each measure and might choose differently.
"""

import functools
import logging
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tape_ds.kernels.jit import INTERPRETED, INTERPRETER, SHARED_MEMORY, capability, triton

__all__ = ["INTERPRETER", "SHARED_MEMORY", "Launch", "Table", "capability", "choose", "padded"]

logger = logging.getLogger(__name__)

AUTOTUNE = "TAPE_DS_AUTOTUNE"


class Launch(NamedTuple):
    """Block sizes and resources of one kernel."""

    rows: int
    """A block of the axis that is split over programs: queries, or keys, or tokens."""
    columns: int
    """A block of the axis that a program loops over."""
    warps: int = 4
    stages: int = 2

    @property
    def options(self) -> dict[str, Any]:
        """The compiler's options, of a launch ``kernel[grid](..., **launch.options)`` and of the compile gate.

        Fused multiply-adds are enabled by name: Triton 3.9 warns that its default is about to change.
        """
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


# (capability, padded head size) -> launches, the default first
Table = Mapping[tuple[int, int], Sequence[Launch]]


def padded(width: int) -> int:
    """Return the block that holds ``width`` columns: a power of 2, at least the 16 that a tensor core takes."""
    return max(16, 1 << (width - 1).bit_length())


_MEASURED: dict[Hashable, Launch] = {}


def choose(
    name: str,
    table: Table,
    device: torch.device,
    width: int,
    shape: Hashable,
    run: Callable[[Launch], object],
) -> Launch:
    """Return the launch for a padded head size: the table's default, or with ``TAPE_DS_AUTOTUNE=1`` the fastest of its
    row.

    Args:
        name: of the kernel, for the log and the memory of what was measured.
        table: the kernel's own.
        device: where it will run.
        width: padded head size.
        shape: whatever else decides the speed; one measurement is made for each.
        run: launches the kernel; may be called many times, so it must not accumulate into its results.
    """
    candidates = table[capability(device), width]
    if INTERPRETED or os.environ.get(AUTOTUNE) != "1" or len(candidates) == 1:
        return candidates[0]
    key = (name, device, width, shape)
    if key not in _MEASURED:
        times = {
            launch: triton.testing.do_bench(functools.partial(run, launch)) for launch in candidates
        }
        _MEASURED[key] = min(times, key=times.__getitem__)
        logger.info(
            "%s at %s: %s of %d launches is fastest", name, shape, _MEASURED[key], len(candidates)
        )
    return _MEASURED[key]
