"""The process as one of several on a machine: its share of the cores, its peak memory, how it leaves its group."""

import contextlib
import os
import resource
import sys
from pathlib import Path

import torch

# proc(5): 5 sets the peak of the resident set to its present size
_CLEAR_REFS = Path("/proc/self/clear_refs")


def share_cores() -> None:
    """Give each process of a CPU machine its share of the cores.

    DeepSpeed's launcher leaves thread counts alone, so two ranks would each start a thread for every core and wait for
    each other. Accelerate, which does not know that launcher's name for the number of local processes, would give each
    all cores again, unless the variable says that a number was chosen. A machine with a GPU keeps torch's default, and
    so does a user who set OMP_NUM_THREADS.
    """
    if "OMP_NUM_THREADS" in os.environ or torch.cuda.is_available():
        return
    cores = os.cpu_count() or 1
    # those that a container or scheduler leaves to this process
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    share = max(1, cores // int(os.environ.get("LOCAL_SIZE", "1")))
    torch.set_num_threads(share)
    os.environ["OMP_NUM_THREADS"] = str(share)


def leave_process_group() -> None:
    """End the process group in order on every rank: left to interpreter exit, it now and then aborts the process.

    Only for a run that went well: after an error the other ranks may wait anywhere.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def reset_peak_memory(device: torch.device) -> None:
    """Reset what :func:`peak_memory_bytes` returns, where the system allows it (CUDA, Linux)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR_REFS.exists():
        # a container may forbid it: the peak is then the whole process's
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text("5")


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory of this process at any time since :func:`reset_peak_memory` (where the system has no such
    thing: since it began): allocated by torch on a CUDA device, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # getrusage(2) of either system
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
