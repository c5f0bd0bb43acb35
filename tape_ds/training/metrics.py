"""Use of the hardware and memory of a training run, and the line of metrics on the terminal.

Where a device's peak is unknown the figure is None, shown as N/A; a loss that is not a number is shown as it is.
"""

from collections.abc import Mapping
from typing import Any

import psutil
import torch

from tape_ds.numbers import NOT_AVAILABLE, duration, gibibytes, number
from tape_ds.planning import hardware


def model_flops_utilisation(
    tokens_per_second: float, flops_per_token: float, devices: int, device: torch.device
) -> float | None:
    """Return MFU: the share, 0 to 1, of the devices' peak that the model's own arithmetic uses (forward and backward,
    without recomputation); None where the peak of ``device`` is unknown, as a CPU's is. Tokens per second are of all
    devices together."""
    peak = None
    if device.type == "cuda":
        peak = hardware.peak_flops(torch.cuda.get_device_name(device))
    if peak is None:
        return None
    return tokens_per_second * flops_per_token / (devices * peak)


def memory_bytes(device: torch.device) -> int:
    """Return the peak of allocated memory on a CUDA device, the present resident set on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return psutil.Process().memory_info().rss


_IN_PLACE = (
    "step",
    "loss",
    "grad_norm",
    "lr",
    "tokens_per_second",
    "mfu",
    "memory_bytes",
    "eta_seconds",
    "skipped",
)


def line(metrics: Mapping[str, Any], total_steps: int) -> str:
    """Return ``metrics`` in one line, fields always in the same order and place. A known field that is absent or None
    reads N/A; any other number follows under its own name."""
    step = metrics.get("step")
    parts = [
        f"step {NOT_AVAILABLE if step is None else step:>{len(str(total_steps))}}/{total_steps}",
        f"loss {number(metrics.get('loss'), '.4f'):>7}",
        f"grad norm {number(metrics.get('grad_norm'), '.3f'):>7}",
        f"lr {number(metrics.get('lr'), '.2e'):>8}",
        f"{number(metrics.get('tokens_per_second'), ',.0f'):>7} tok/s",
        f"MFU {number(metrics.get('mfu'), '.1%'):>5}",
        f"mem {gibibytes(metrics.get('memory_bytes')):>9}",
        f"ETA {duration(metrics.get('eta_seconds')):>7}",
    ]
    parts += [f"{key} {number(metrics[key], '.4g')}" for key in metrics if key not in _IN_PLACE]
    if metrics.get("skipped"):
        parts.append(f"SKIPPED {metrics['skipped']} so far")
    return " | ".join(parts)
