"""Memory of a host for what follows a run: merging or exporting its weights, and loading them."""

from tape_ds.planning.job import Job

LIBRARIES = 0.6 * 2**30
"""Bytes of a process with Python and its libraries, and of the few MiB of weights that are read at once (measured by
``python -m benchmarks merge``)."""
_FP32 = 4


def merging(job: Job) -> float:
    """Return the bytes of a process of ``tape-ds merge`` or ``export``. Weights go through it a few rows at a time; of
    what is trained, adapters and what is trained beside them are in memory, in fp32."""
    return LIBRARIES + (job.trained_parameters * _FP32 if job.trained.adapters else 0)


def loading(job: Job) -> float:
    """Return the bytes of main memory of a process of ``evaluate`` or ``serve`` until the weights are on their
    device."""
    # adapters, and copies of what is trained whole
    added = job.trained_parameters if job.trained.adapters else 0
    return merging(job) + (job.parameters - added) * job.element
