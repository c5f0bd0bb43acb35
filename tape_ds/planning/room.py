"""Whether a job fits what it is about to run on, said before it starts, and what would make it fit."""

from dataclasses import replace

from tape_ds.errors import Problem
from tape_ds.planning import memory, search
from tape_ds.planning.job import Job, problems
from tape_ds.planning.memory import Estimate

GIB = 2**30


def check(job: Job, *, force: bool = False) -> list[Problem]:
    """What is wrong with a job: more memory than its GPU has, or its host. Empty on a CPU, and with ``force``.

    Args:
        job: what is about to run.
        force: whether the user wants it to start all the same.
    """
    if job.gpu is None or force:
        return []
    found = memory.estimate(job)
    problems = []
    if found.peak.total > job.gpu.memory:
        wrong = (
            f"{found.peak.total / GIB:,.1f} GiB would be needed in the {found.peak.moment}, and a {job.gpu.name} has "
            f"{job.gpu.memory / GIB:,.1f} ({_largest_parts(found)})"
        )
        problems.append(Problem("memory", job.layout.name(), wrong, f"{_remedy(job)}, or --force to try"))
    if found.host > job.gpu.host_memory:
        wrong = (
            f"{found.host / GIB:,.1f} GiB of the host's memory would be needed for each GPU, and there are "
            f"{job.gpu.host_memory / GIB:,.1f}"
        )
        problems.append(Problem("offload", job.layout.name(), wrong, "offload less, or --force to try"))
    return problems


def _largest_parts(found: Estimate) -> str:
    parts = sorted(found.peak.parts().items(), key=lambda each: -each[1])[:3]
    return ", ".join(f"{name.replace('_', ' ')} {size / GIB:,.1f}" for name, size in parts)


def _remedy(job: Job) -> str:
    """The change of one lever that costs least time; where none helps, the fastest way of all on these GPUs."""
    for again in (job.layout.checkpoint_layers, 1):
        for micro_batch in (job.layout.micro_batch, 1):
            for zero in (job.layout.zero, *range((job.layout.zero or 0) + 1, 4)):
                layout = replace(job.layout, checkpoint_layers=again, micro_batch=micro_batch, zero=zero)
                changed = replace(job, layout=layout)
                if layout != job.layout and not problems(changed) and search.fits(changed):
                    return _told(job, changed)
    found = search.search(job)
    if found and found[0].fits:
        return _told(job, found[0].job)
    longest = search.largest_length(replace(job, layout=found[0].layout)) if found else 0
    shorter = f"rows of {longest:,} tokens" if longest else "a smaller model"
    return f"nothing fits on {job.layout.gpus} of them: more GPUs, or {shorter}"


_FIELDS = {
    "zero": "deepspeed: zero{}",
    "tensor": "tensor_parallel_size: {}",
    "sequence": "sequence_parallel_size: {}",
    "micro_batch": "per_device_train_batch_size: {}",
    "mlp_tiles": "mlp_tiles: {}",
    "offload_checkpoints": "checkpoint_offload: true",
    "offload_optimizer": "offload_optimizer to the cpu",
    "offload_weights": "offload_param to the cpu",
}


def _told(before: Job, after: Job) -> str:
    """The recipe's fields that differ."""
    told = [
        text.format(getattr(after.layout, name))
        for name, text in _FIELDS.items()
        if getattr(after.layout, name) != getattr(before.layout, name)
    ]
    again = after.layout.checkpoint_layers
    if again != before.layout.checkpoint_layers:
        told.append("activation_checkpointing: true" + (f", checkpoint_layers: {again}" if again != 1 else ""))
    return ", ".join(told)
