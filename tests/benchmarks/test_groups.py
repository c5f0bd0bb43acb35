"""Every group runs on a CPU at toy sizes, and every implementation that can compute there is right."""

import pytest
import torch

from benchmarks import attention, decode, encodings, generate, models, table4
from benchmarks import toys as sizes
from benchmarks.__main__ import measure
from benchmarks.benchmark_case import Setting
from benchmarks.groups import GROUPS

SETTING = Setting(torch.device("cpu"), torch.float32)
ORIGIN = {"device": "a CPU", "chip": "cpu", "date": "today", "commit": "none", "versions": ""}
EXPECTED = {
    "attention": {"sdpa flash", "two calls, sdpa flash", "padded, sdpa flash", "attend auto", "attend sdpa"},
    "packed": {"attend auto", "attend sdpa", "attend reference"},
    "launches": {"ours", "ours, 64x32, 4 warps, 2 stages"},
    "decode": {"sdpa flash", "two calls, sdpa flash", "one call, sdpa math", "plain matrices", "attend auto"},
    "position_mix": {"ours", "eager"},
    "rotate": {"ours", "eager"},
    "layer": {"attend sdpa"},
    "step": {"attend sdpa"},
    "generate": {"attend sdpa"},
    "recipe": {"attend auto"},
    "formulation": {"ours", "published, three eager", "published, one eager", "published, three sdpa"},
    "table4": {"attend sdpa", "published, three eager", "published, one eager", "published, three sdpa"},
    "encodings": {"attend sdpa"},
    "memory_savings": {"ours", "ours, selective", "ours, every block again, 8 tiles, inputs on the host"},
}
"""Implementations that must have a time, of either encoding."""
ENCODINGS = {name: {"tape"} for name in ("position_mix", "formulation", "memory_savings", "launches")}
ENCODINGS |= {"table4": set(table4.ENCODINGS), "encodings": set(encodings.ENCODINGS)}
"""Those that must have a time, where it is not RoPE and TAPE."""


@pytest.mark.parametrize("name", GROUPS)
def test_every_implementation_is_right_or_says_why_not(name, toys):
    rows = measure(name, GROUPS[name], toys[name], SETTING, 1, ORIGIN)
    timed = {row.implementation for row in rows if row.status == "timed"}
    assert timed >= EXPECTED[name]
    refused = {row.reason for row in rows if row.status == "refused"}
    assert refused <= {"RuntimeError: no compiler for toys"}
    assert [row for row in rows if row.status == "wrong"] == []
    encodings = {row.encoding for row in rows if row.status == "timed"}
    assert encodings == ENCODINGS.get(name, {"rope", "tape"})
    for row in rows:
        if row.status == "timed":
            assert row.total_p20 > 0 and row.peak_bytes > 0
            assert row.error <= row.allowed


def test_the_three_calls_of_the_published_form_are_among_attention_s_rivals(toys):
    implementations = {entry.implementation for entry in GROUPS["attention"].case(toys["attention"], SETTING).entries}
    assert "three calls, sdpa flash (published form)" in implementations


def test_on_a_gpu_every_library_and_every_backend_is_asked(toys):
    device = torch.device("cuda")
    asked = {each[:2] for each in attention.implementations(toys["attention"], device)}
    for name in ("sdpa flash", "sdpa cudnn", "sdpa efficient", "sdpa math", "flash-attn 2", "flash-attn 3"):
        assert {("rope", name), ("tape", f"two calls, {name}"), ("tape", f"padded, {name}")} <= asked
    for name in ("ours", "ours, deterministic", "flex", "one call, sdpa cudnn", "attend triton", "attend flash"):
        assert ("tape", name) in asked
    for name in ("stacked, sdpa cudnn", "stacked, flash-attn 3", "flex, small blocks", "one call, flash-attn 4"):
        assert ("tape", name) in asked
    packed = {each[:2] for each in attention.implementations(toys["packed"], device)}
    for name in (
        "attend varlen",
        "flash-attn 2",
        "flash-attn 3",
        "flash-attn 4",
        "fla",
        "attend sdpa",
        "attend triton",
    ):
        assert ("rope", name) in packed
    for name in ("attend varlen", "stacked, varlen", "fla", "ours", "flex", "attend triton"):
        assert ("tape", name) in packed
    assert not any("sdpa" in name and "attend" not in name for _, name in packed)
    assert {("rope", "ours"), ("tape", "ours")} <= {each[:2] for each in decode.implementations(device)}
    assert {"auto", "sdpa", "triton", "flash", "flex", "varlen"} == set(models.backends(device))
    assert models.backends(torch.device("cpu")) == ["sdpa"]


def test_both_encodings_stand_on_the_same_weights(toys):
    member = models.family(models.sizes(toys["step"]), SETTING)
    rope, tape, other = member("rope", "sdpa"), member("tape", "sdpa"), member("tape", "auto")
    mine = dict(tape.named_parameters())
    for name, weight in rope.named_parameters():
        assert mine[name].data_ptr() == weight.data_ptr()
        assert mine[name] is not weight
    updates = [name for name in mine if ".position." in name]
    assert updates and all(mine[name].abs().max() > 0 for name in updates)
    assert {name: x.data_ptr() for name, x in other.named_parameters()} == {n: x.data_ptr() for n, x in mine.items()}
    assert other.config.attention_backend == "auto"


@pytest.mark.gpu
@pytest.mark.parametrize("name", GROUPS)
def test_on_a_gpu_every_rival_is_right_or_says_why_not(name):
    if name == "memory_savings":
        pytest.importorskip("deepspeed")
    gpu_toys = sizes.TOYS["cuda"]
    setting = Setting(torch.device("cuda"), torch.bfloat16)
    rows = measure(name, GROUPS[name], gpu_toys[name], setting, 2, ORIGIN)
    assert [(row.encoding, row.implementation, row.reason) for row in rows if row.status == "wrong"] == []
    refused = {f"{row.encoding} {row.implementation}: {row.reason}" for row in rows if row.status == "refused"}
    timed = {row.implementation for row in rows if row.status == "timed"}
    own = {entry.implementation for entry in GROUPS[name].case(gpu_toys[name], setting).entries}
    optional = ("flash", "CUDA graph")  # a package of its own; whatever waits for the device
    own = {
        implementation
        for implementation in own
        if implementation.startswith(("ours", "attend")) and not any(x in implementation for x in optional)
    }
    assert timed >= own, refused


def test_a_full_cache_is_as_wide_as_the_model_makes_it(toys):
    """TAPE's values carry the state in every layer but the last, which is what the comparison is about."""
    member = models.family(models.SIZES["tiny"], SETTING)
    widths = {}
    for encoding in models.ENCODINGS:
        cache = generate.full_cache(member(encoding, "sdpa").eval(), 2, 40)
        assert {tuple(layer.keys.shape) for layer in cache.layers} == {(2, 4, 40, 8)}
        widths[encoding] = [layer.values.shape[3] for layer in cache.layers]
    assert widths == {"rope": [8, 8, 8], "tape": [16, 16, 8]}
