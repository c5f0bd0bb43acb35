"""The prediction for a job, shared by ``--dry_run``, the check before loading and ``tape-ds plan``."""

import functools
from dataclasses import dataclass

from tape_ds.planning import memory, roofline
from tape_ds.planning.job import Job
from tape_ds.planning.memory import Estimate

GIB = 2**30


@dataclass(frozen=True)
class Plan:
    """The answer to a job; each part is computed when it is asked for."""

    job: Job

    @functools.cached_property
    def memory(self) -> Estimate:
        """Bytes by part and moment; without a reserve on a CPU."""
        return memory.estimate(self.job, reserve=self.job.gpu is not None)

    @functools.cached_property
    def step(self) -> roofline.Step:
        """Seconds of a step. Raises ValueError on a CPU, whose speed is not predicted."""
        if self.job.gpu is None:
            raise ValueError("time is predicted for GPUs alone")
        return roofline.step(self.job, self.job.gpu)

    @property
    def fits(self) -> bool:
        """Whether GPU and host have room; on a CPU there is no limit to compare with."""
        gpu = self.job.gpu
        found = self.memory
        return gpu is None or (found.peak.total <= gpu.memory and found.host <= gpu.host_memory)

    def largest_parts(self, least: float) -> str:
        """Return the parts of memory at the peak that make up ``least`` of it or more, in GiB, the largest first."""
        peak = self.memory.peak
        shown = sorted(peak.parts().items(), key=lambda each: -each[1])
        return ", ".join(
            f"{name.replace('_', ' ')} {size / GIB:.2f}"
            for name, size in shown
            if size >= least * peak.total
        )

    def summary(self) -> str:
        gpu = self.job.gpu
        found = self.memory
        if gpu is None:
            where = "a process on a CPU"
        else:
            where = f"a GPU of {gpu.memory / GIB:.1f} ({gpu.name})"
        host = ""
        if found.host:
            host = f"; {found.host / GIB:.1f} of the host's for each"
        counted = ""
        if self.job.model.counted:
            counted = "; activations as of a dense Llama of its sizes"
        return (
            f"about {found.peak.total / GIB:.2f} GiB {where}, in the {found.peak.moment}: {self.largest_parts(0.01)}"
            f"{host} (predicted, without scoring{counted})"
        )
