"""Check implementations of one shape against the truth, then time them in turn.

A wrong one is listed with its error and gets no time; one that its library refuses is listed with the library's reason.
"""

import functools
import gc
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.measure import (
    Runner,
    Summary,
    TimedSample,
    bytes_of,
    clock,
    interleaved,
    peak_bytes,
    summarise,
)

# the encoding that the others' times are divided by
BASELINE = "rope"
TIMED = "timed"
WRONG = "wrong"
REFUSED = "refused"
# samples of an implementation before all are timed in turn
FIRST = 3
STRETCHES = 16
FACTOR = 2.0
# Relative error that is always allowed: plain PyTorch is exact by luck at times
FLOOR = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 5e-4, torch.bfloat16: 2e-3}


class Setting(NamedTuple):
    device: torch.device
    dtype: torch.dtype


class CaseEntry(NamedTuple):
    """An implementation that has not run yet."""

    implementation: str
    encoding: str
    """"rope" (the baseline), "tape", or another one that is compared with them."""
    build: Callable[[], Runner]


class Expected(NamedTuple):
    value: Tensor
    allowed: float
    """Largest relative error, see :func:`error_of`."""


Truth = Mapping[str, Expected]


class BenchmarkCase(NamedTuple):
    """Implementations, and the expected results of each encoding."""

    entries: list[CaseEntry]
    truth: Mapping[str, Callable[[], Truth]]
    """By encoding; computed once, when its first implementation is checked."""


class Finding(NamedTuple):
    implementation: str
    encoding: str
    status: str
    reason: str = ""
    """Why it was refused, or which tensor is wrong."""
    error: float | None = None
    """The error of the worst tensor relative to its allowed error, see :func:`error_of`."""
    allowed: float | None = None
    times: Mapping[str, Summary] = MappingProxyType({})
    """Milliseconds of the known parts: "forward" and "backward", or the "total" alone."""
    peak_bytes: int | None = None
    repeats: int = 0
    """Samples that the times were taken from."""


def error_of(x: Tensor, expected: Tensor) -> float:
    """``|x - expected| / |expected|``, of the worst of 16 stretches of tokens where there are that many.

    One broken tile at the end of a row would vanish in the norm of the whole. Infinite where ``x`` is not finite.
    """
    assert x.shape == expected.shape, f"{tuple(x.shape)} is not {tuple(expected.shape)}"
    x = x.detach().to(expected.dtype)
    if not bool(torch.isfinite(x).all()):
        return float("inf")
    mine: Sequence[Tensor] = [x]
    true: Sequence[Tensor] = [expected]
    if x.ndim > 2 and x.shape[-2] >= STRETCHES:
        mine = x.chunk(STRETCHES, -2)
        true = expected.chunk(STRETCHES, -2)
    # a stretch that is nearly 0 is measured by the whole
    least = max(1e-3 * float(expected.norm()) / (STRETCHES**0.5), 1e-30)
    errors = []
    for piece, expected_piece in zip(mine, true, strict=True):
        size = max(float(expected_piece.norm()), least)
        errors.append(float((piece - expected_piece).norm()) / size)
    return max(errors)


def expected_from(
    exact: Mapping[str, Tensor], plain: Mapping[str, Tensor], dtype: torch.dtype
) -> Truth:
    """Return the truth; a result may be twice as far from it as plain PyTorch in the same precision."""
    assert exact.keys() == plain.keys()
    truth = {}
    for name, value in exact.items():
        allowed = max(FACTOR * error_of(plain[name], value), FLOOR[dtype])
        truth[name] = Expected(value, allowed)
    return truth


def operation(
    call: Callable[..., Tensor], inputs: Mapping[str, Tensor], returned: Tensor | None = None
) -> Runner:
    """Return a runner of a call with these inputs, in their order, and of the gradients that they require."""
    leaves = {f"d_{name}": x for name, x in inputs.items() if x.requires_grad}

    def forward() -> Tensor:
        return call(*inputs.values())

    def backward(out: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, list(leaves.values()), returned)

    def outcome() -> dict[str, Tensor]:
        out = forward()
        results = {"out": out.detach()}
        # a decoding step has no gradients
        if leaves:
            results |= zip(leaves, backward(out), strict=True)
        return results

    return Runner(forward, backward if leaves else None, outcome, bytes_of(list(inputs.values())))


def truth_of(
    formula: Callable[..., Tensor],
    inputs: Mapping[str, Tensor],
    dtype: torch.dtype,
    returned: Tensor | None = None,
) -> Truth:
    """Return the truth of an :func:`operation`: its plain formula in fp64, with the error of the same in ``dtype``."""

    def outcome(precision: torch.dtype) -> dict[str, Tensor]:
        leaves = {}
        for name, x in inputs.items():
            leaves[name] = x.detach().to(precision).requires_grad_(x.requires_grad)
        gradient = None if returned is None else returned.to(precision)
        return operation(formula, leaves, gradient).outcome()

    return expected_from(outcome(torch.float64), outcome(dtype), dtype)


def fused_operation(
    ours: Callable[..., Tensor],
    formula: Callable[..., Tensor],
    inputs: Mapping[str, Mapping[str, Tensor]],
    returned: Tensor,
    dtype: torch.dtype,
) -> BenchmarkCase:
    """Compare our operation with its plain formula, eager and compiled; ``inputs`` by encoding."""

    def build(encoding: str, name: str) -> Runner:
        call = {"ours": ours, "eager": formula}.get(name)
        if call is None:
            call = torch.compile(formula, dynamic=False)
        return operation(call, inputs[encoding], returned)

    entries = []
    truth = {}
    for encoding, of_encoding in inputs.items():
        truth[encoding] = functools.partial(truth_of, formula, of_encoding, dtype, returned)
        for name in ("ours", "eager", "compiled"):
            entries.append(CaseEntry(name, encoding, functools.partial(build, encoding, name)))
    return BenchmarkCase(entries, truth)


def run(
    case: BenchmarkCase, setting: Setting, repeats: int, *, head_start: bool, warm_up: int = 0
) -> Iterator[Finding]:
    """Check every implementation, and yield its finding as soon as it has a few samples: a run may be cut short.

    Then all that are right are timed in turn, so that a drift of the machine affects all of them, and yielded again.
    Peak memory is taken from the first run at full size, which is a first warm-up too; ``warm_up`` more follow.
    """
    truths: dict[str, Truth] = {}
    runners: dict[str, Runner] = {}
    findings: dict[str, Finding] = {}
    take = clock(setting.device, head_start)
    for entry in case.entries:
        key = f"{entry.encoding}: {entry.implementation}"
        assert key not in findings, f"{key} is there twice"
        if entry.encoding not in truths:
            truths[entry.encoding] = case.truth[entry.encoding]()
            _free_memory(setting.device)
        finding, runner = _check(entry, truths[entry.encoding], setting)
        if runner is not None:
            try:
                finding = finding._replace(peak_bytes=peak_bytes(runner, setting.device))
                samples = interleaved({key: runner}, min(FIRST, repeats), take, warm_up)[key]
                finding = _timed(finding, runner, samples)
                runners[key] = runner
            except (RuntimeError, MemoryError) as error:
                # out of memory: the check may have run on fewer tokens
                finding = finding._replace(status=REFUSED, reason=_reason(error, []))
                _free_memory(setting.device)
        print(f"  {key}: {finding.status} {finding.reason}".rstrip(), file=sys.stderr, flush=True)
        findings[key] = finding
        yield finding
    truths.clear()
    _free_memory(setting.device)
    if repeats > FIRST and runners:
        for key, samples in interleaved(runners, repeats, take, 0).items():
            yield _timed(findings[key], runners[key], samples)


def _timed(finding: Finding, runner: Runner, samples: Sequence[TimedSample]) -> Finding:
    times = {"total": summarise([sample.forward + sample.backward for sample in samples])}
    # of a forward alone the total is all that is known
    if runner.backward is not None:
        times["forward"] = summarise([sample.forward for sample in samples])
        times["backward"] = summarise([sample.backward for sample in samples])
    return finding._replace(times=times, repeats=len(samples))


def _check(entry: CaseEntry, truth: Truth, setting: Setting) -> tuple[Finding, Runner | None]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            runner = entry.build()
            outcome = runner.outcome()
        except Exception as error:
            # a library may raise anything
            _free_memory(setting.device)
            reason = _reason(error, [str(warning.message) for warning in warned])
            return Finding(entry.implementation, entry.encoding, REFUSED, reason), None
    assert outcome.keys() == truth.keys(), f"{sorted(outcome)} are not {sorted(truth)}"
    errors = {name: error_of(outcome[name], expected.value) for name, expected in truth.items()}
    worst = max(errors, key=lambda name: errors[name] / truth[name].allowed)
    allowed = truth[worst].allowed
    finding = Finding(entry.implementation, entry.encoding, TIMED, "", errors[worst], allowed)
    if not errors[worst] <= allowed:
        reason = f"{worst} is off by {errors[worst]:.1e}, {allowed:.1e} is allowed"
        return finding._replace(status=WRONG, reason=reason), None
    return finding, runner


def _free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _reason(error: Exception, warned: list[str]) -> str:
    """Return the library's message: torch warns why none of its kernels fits."""
    reasons: dict[str, None] = {}
    for text in [str(error), *warned]:
        first_line = text.strip().partition("\n")[0]
        # where in torch's sources it was raised says nothing to a reader
        plain = re.sub(r"\(Triggered internally[^)]*\)", "", first_line)
        reasons[" ".join(plain.split())] = None
    whole = "; ".join(filter(None, reasons)) or repr(error)
    return f"{type(error).__name__}: {whole}"[:300]
