"""Measurement of times and memory, on a CPU and on a GPU.

A sample of a GPU is the time between two CUDA events. Before it, a write larger than the second-level cache empties
that cache, and an idle kernel keeps the GPU busy while Python queues the work, so that the time of a short operation
does not include its launches. Whole models are timed without that head start. On a CPU a sample is wall time.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

# more than the second-level cache of any GPU at hand (H100: 50 MB, B200: 126 MB)
FLUSHED_BYTES = 256 << 20
# about a millisecond
HEAD_START_CYCLES = 2_000_000


class Runner(NamedTuple):
    forward: Callable[[], Any]
    backward: Callable[[Any], object] | None
    """Takes what ``forward`` gave; None where there is nothing to differentiate, or no telling the two apart."""
    outcome: Callable[[], dict[str, Tensor]]
    """Compute output and gradients, for the comparison with the truth before anything is timed."""
    held: int
    """Bytes of its inputs and parameters: memory it needs besides what it allocates."""

    def run(self) -> None:
        out = self.forward()
        if self.backward is not None:
            self.backward(out)


class TimedSample(NamedTuple):
    forward: float
    backward: float


class Summary(NamedTuple):
    p20: float
    p50: float
    p80: float


def summarise(samples: Sequence[float]) -> Summary:
    quantiles = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    return Summary(*torch.quantile(torch.tensor(samples, dtype=torch.float64), quantiles).tolist())


def clock(device: torch.device, head_start: bool) -> Callable[[Runner], TimedSample]:
    """Return a function that takes one sample."""

    def on_cpu(runner: Runner) -> TimedSample:
        began = time.perf_counter()
        out = runner.forward()
        turned = time.perf_counter()
        if runner.backward is not None:
            runner.backward(out)
        return TimedSample(1e3 * (turned - began), 1e3 * (time.perf_counter() - turned))

    if device.type != "cuda":
        return on_cpu
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device)

    def on_gpu(runner: Runner) -> TimedSample:
        began, turned, ended = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        # nothing of the last sample is left in the cache
        flushed.zero_()
        if head_start:
            torch.cuda._sleep(HEAD_START_CYCLES)
        began.record()
        out = runner.forward()
        turned.record()
        if runner.backward is not None:
            runner.backward(out)
        ended.record()
        ended.synchronize()
        return TimedSample(began.elapsed_time(turned), turned.elapsed_time(ended))

    return on_gpu


def interleaved(
    runners: dict[str, Runner], repeats: int, take: Callable[[Runner], TimedSample], warm_up: int
) -> dict[str, list[TimedSample]]:
    """Take ``repeats`` samples of each in turn, so that a drift of the machine affects all alike."""
    for runner in runners.values():
        for _ in range(warm_up):
            take(runner)
    samples: defaultdict[str, list[TimedSample]] = defaultdict(list)
    for _ in range(repeats):
        for name, runner in runners.items():
            samples[name].append(take(runner))
    return samples


def peak_bytes(runner: Runner, device: torch.device) -> int:
    """Return the most bytes alive at once in a forward and backward, inputs and parameters included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        runner.run()
        torch.cuda.synchronize(device)
        return runner.held + torch.cuda.max_memory_allocated(device) - before

    # of a CPU, from the events of torch's allocator
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        runner.run()
    events = [
        event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    alive = highest = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        alive += event.nbytes()
        highest = max(highest, alive)
    return runner.held + highest


def bytes_of(tensors: Sequence[Tensor | None]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)
