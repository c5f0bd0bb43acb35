"""Every group runs on a CPU at toy sizes, and every implementation that can compute there is right."""

import pytest
import torch

from benchmarks import models, whole_models
from benchmarks.__main__ import measure
from benchmarks.benchmark_case import Setting
from benchmarks.groups import GROUPS
from benchmarks.shapes import read_shape

SETTING = Setting(torch.device("cpu"), torch.float32)
ORIGIN = {"device": "a CPU", "chip": "cpu", "date": "today", "commit": "none", "versions": ""}
EXPECTED = {
    "smoke": {"attend sdpa", "attend triton"},
    "attention": {"attend auto", "attend sdpa", "attend reference"},
    "launches": {"attend triton", "ours, 64x32, 4 warps, 2 stages"},
    "decode": {"attend auto", "plain matrices"},
    "position_mix": {"ours", "eager", "compiled"},
    "rotate": {"ours", "eager", "compiled"},
    "recipe": {"attend sdpa", "attend sdpa, no recomputation"},
    "encodings": {"attend sdpa"},
}
"""Implementations that must have a time, of either encoding."""
ENCODINGS = {
    "position_mix": {"tape"},
    "launches": {"tape"},
    "encodings": set(whole_models.ENCODINGS),
}
"""Those that must have a time, where it is not RoPE and TAPE."""


@pytest.mark.parametrize("name", GROUPS)
def test_every_implementation_is_right_or_says_why_not(name, monkeypatch):
    # it would take longer than all else
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    rows = list(measure(name, GROUPS[name].shapes("cpu", toys=True)[0], SETTING, 1, ORIGIN))
    assert {row.implementation for row in rows} >= EXPECTED[name]
    assert {(row.status, row.reason) for row in rows} == {("timed", "")}
    assert {row.encoding for row in rows} == ENCODINGS.get(name, {"rope", "tape"})
    for row in rows:
        assert row.total_p20 > 0 and row.peak_bytes > 0
        assert row.error <= row.allowed


def test_both_encodings_stand_on_the_same_weights():
    member = models.family(read_shape("tiny L3 B1 T40"), SETTING)
    rope, tape, other = member("rope", "sdpa"), member("tape", "sdpa"), member("tape", "auto")
    mine = dict(tape.named_parameters())
    for name, weight in rope.named_parameters():
        assert mine[name].data_ptr() == weight.data_ptr()
        assert mine[name] is not weight
    updates = [name for name in mine if ".position." in name]
    assert updates and all(mine[name].abs().max() > 0 for name in updates)
    assert {name: x.data_ptr() for name, x in other.named_parameters()} == {
        n: x.data_ptr() for n, x in mine.items()
    }
    assert other.config.attention_backend == "auto"


@pytest.mark.gpu
@pytest.mark.parametrize("name", GROUPS)
def test_on_a_gpu_every_rival_is_right_or_says_why_not(name):
    setting = Setting(torch.device("cuda"), torch.bfloat16)
    rows = list(measure(name, GROUPS[name].shapes("cuda", toys=True)[0], setting, 2, ORIGIN))
    assert [
        (row.encoding, row.implementation, row.reason) for row in rows if row.status == "wrong"
    ] == []
    lacking = [
        row
        for row in rows
        if row.status == "refused" and row.implementation.startswith(("ours", "attend"))
    ]
    assert [
        row for row in lacking if row.implementation not in ("attend flash", "attend flex")
    ] == []
