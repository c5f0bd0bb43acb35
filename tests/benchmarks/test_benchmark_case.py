"""Nothing wrong gets a time, nothing refused stops the others, and the errors are seen where they are."""

import warnings

import pytest
import torch

from benchmarks.benchmark_case import (
    FLOOR,
    BenchmarkCase,
    CaseEntry,
    Expected,
    Setting,
    error_of,
    expected_from,
    run,
)
from benchmarks.measure import Runner

SETTING = Setting(torch.device("cpu"), torch.float32)
TRUE = torch.linspace(1.0, 2.0, 4 * 64 * 8, dtype=torch.float64).view(1, 4, 64, 8)


def case(**computed):
    """Implementations by what they compute, or what they raise; and how often each ran forward."""
    calls = dict.fromkeys(computed, 0)

    def build(name):
        value = computed[name]
        if isinstance(value, Exception):
            warnings.warn(
                "no kernel: it wants equal widths (Triggered internally at /a/b.cpp:1.)",
                stacklevel=2,
            )
            raise value

        def forward():
            calls[name] += 1
            return value

        return Runner(forward, lambda out: out + 1, lambda: {"out": value}, 0)

    entries = [CaseEntry(name, "tape", lambda name=name: build(name)) for name in computed]
    return BenchmarkCase(entries, {"tape": lambda: {"out": Expected(TRUE, 1e-4)}}), calls


def found(findings, implementation):
    (one,) = [each for each in findings if each.implementation == implementation]
    return one


def test_a_wrong_rival_is_listed_with_its_error_and_never_timed():
    asked, calls = case(right=TRUE.float(), wrong=TRUE.float() * 1.01)
    findings = list(run(asked, SETTING, 3, head_start=True, warm_up=2))
    wrong, right = found(findings, "wrong"), found(findings, "right")
    assert wrong.status == "wrong"
    assert wrong.error == pytest.approx(0.01, rel=1e-3)
    assert (wrong.times, wrong.peak_bytes) == ({}, None)
    assert "out is off by 1.0e-02, 1.0e-04 is allowed" in wrong.reason
    assert calls == {"right": 1 + 2 + 3, "wrong": 0}  # memory, warm-up, samples
    assert right.status == "timed"
    assert set(right.times) == {"forward", "backward", "total"}
    assert 0 < right.times["total"].p20 <= right.times["total"].p50 <= right.times["total"].p80


def test_a_refused_rival_is_listed_with_the_library_s_words():
    asked, _ = case(refused=RuntimeError("No available kernel.\nAborting"), right=TRUE.float())
    findings = list(run(asked, SETTING, 1, head_start=True))
    refused = found(findings, "refused")
    assert refused.status == "refused"
    assert refused.reason == "RuntimeError: No available kernel.; no kernel: it wants equal widths"
    assert refused.times == {}
    assert "total" in found(findings, "right").times


def test_a_broken_tail_does_not_vanish_in_the_norm_of_the_whole():
    broken = TRUE.clone()
    broken[:, 0, -1] = 0.0
    whole = float((broken - TRUE).norm() / TRUE.norm())
    assert error_of(broken, TRUE) > 3 * whole
    assert error_of(TRUE.float(), TRUE) < 1e-7


def test_what_is_not_finite_is_infinitely_wrong():
    broken = TRUE.clone()
    broken[0, 0, 0, 0] = torch.nan
    assert error_of(broken, TRUE) == float("inf")


def test_a_tensor_that_ought_to_be_zero_may_not_be_anything_else():
    zero = torch.zeros(3, 3, dtype=torch.float64)
    assert error_of(zero, zero) == 0.0
    assert error_of(zero + 1e-3, zero) > 1.0


def test_twice_the_error_of_plain_pytorch_is_allowed_and_a_floor():
    truth = expected_from({"a": TRUE, "b": TRUE}, {"a": TRUE * 1.001, "b": TRUE}, torch.float32)
    assert truth["a"].allowed == pytest.approx(2e-3)
    assert truth["b"].allowed == FLOOR[torch.float32]
    runner = Runner(lambda: None, None, lambda: {"a": TRUE * 1.0005, "b": TRUE * 1.0001}, 0)
    asked = BenchmarkCase([CaseEntry("near", "tape", lambda: runner)], {"tape": lambda: truth})
    (finding,) = run(asked, SETTING, 1, head_start=True)
    assert finding.reason == f"b is off by 1.0e-04, {FLOOR[torch.float32]:.1e} is allowed"
