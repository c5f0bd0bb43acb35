"""Liger's kernels in a built model: what is replaced, what stays, and from how many tokens the loss is theirs.

A stand-in with Liger's interface and plain PyTorch inside shows the wiring anywhere; Liger itself runs on a GPU.
"""

import sys
from types import ModuleType, SimpleNamespace

import peft
import pytest
import torch
from torch.nn import functional as F

from tape_ds.methods import liger, liger_forwards
from tape_ds.models.output_head import OutputHead
from tests.models.helpers import gradients, largest_difference, tiny_model, tokens


@pytest.fixture
def calls(monkeypatch):
    """Liger's functions as they are called here, each call noted with its options."""
    seen = []

    def liger_rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True):
        seen.append(("norm", in_place))
        return F.rms_norm(X, X.shape[-1:], W, eps)

    def liger_swiglu(a, b):
        seen.append(("swiglu", None))
        return F.silu(a) * b

    def liger_fused_linear_cross_entropy(
        input,
        weight,
        target,
        bias=None,
        ce_weight=None,
        ignore_index=-100,
        reduction="mean",
        accum_dtype=None,
    ):
        seen.append(("loss", accum_dtype))
        return F.cross_entropy(
            F.linear(input, weight), target, ignore_index=ignore_index, reduction=reduction
        )

    functional = ModuleType("liger_kernel.transformers.functional")
    functional.__dict__.update(
        liger_rms_norm=liger_rms_norm,
        liger_swiglu=liger_swiglu,
        liger_fused_linear_cross_entropy=liger_fused_linear_cross_entropy,
    )
    transformers = ModuleType("liger_kernel.transformers")
    transformers.functional = functional
    package = ModuleType("liger_kernel")
    package.__spec__ = SimpleNamespace(name="liger_kernel")
    for module in (package, transformers, functional):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen


def step(model, ids):
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return loss.detach(), gradients(model)


def test_it_needs_the_package_and_a_gpu(calls, monkeypatch):
    assert "need a CUDA device, not 'cpu'" in liger.why_not(torch.device("cpu"))
    monkeypatch.setattr(liger.importlib.util, "find_spec", lambda name: None)
    assert liger.why_not(torch.device("cuda")) == "the package liger-kernel is not installed"


@pytest.mark.parametrize("from_tokens", [24, 25])
def test_every_norm_feed_forward_and_long_loss(calls, monkeypatch, from_tokens):
    """3 layers; 24 tokens. The loss is Liger's from the threshold on, and ours below."""
    monkeypatch.setattr(liger_forwards, "FUSED_FROM", from_tokens)
    model, ids = tiny_model().train(), tokens(2, 12)
    names, expected = list(model.state_dict()), step(model, ids)
    liger_forwards.use_liger(model)
    found = step(model, ids)
    assert (calls.count(("norm", False)), calls.count(("swiglu", None))) == (7, 3), (
        "no gradient is overwritten"
    )
    assert calls.count(("loss", torch.float32)) == (from_tokens == 24)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=0)
    assert largest_difference(found[1], expected[1]) < 1e-5


def test_a_head_trained_alone_keeps_its_gradient(calls, monkeypatch):
    """Liger computes gradients only where the hidden states need one, and the weight would get none."""
    monkeypatch.setattr(liger_forwards, "FUSED_FROM", 1)
    model, ids = tiny_model().train().requires_grad_(False), tokens(2, 12)
    model.lm_head.requires_grad_(True)
    expected = step(model, ids)[1]
    liger_forwards.use_liger(model)
    found = step(model, ids)[1]
    assert "loss" not in {name for name, _ in calls}
    assert found.keys() == {"lm_head.weight"} and largest_difference(found, expected) < 1e-5


@pytest.mark.parametrize("trained", [True, False])
def test_a_head_trained_in_fp16_is_not_summed_by_liger(calls, trained):
    """Its sum over the tokens would be rounded to fp16, which ends at 65,504; frozen, there is no such sum."""
    head = OutputHead(16, 48, bias=False, dtype=torch.float16).requires_grad_(trained)
    liger_forwards.use_liger(head)
    head.fused_from = 1
    hidden = torch.full((4096, 16), 40.0, dtype=torch.float16, requires_grad=True)
    (head(hidden, targets=torch.zeros(4096, dtype=torch.long)) / 4096).backward()
    assert ("loss" in {name for name, _ in calls}) is not trained
    assert head.weight.grad is None or head.weight.grad.isfinite().all()


def test_what_peft_wrapped(calls):
    """Copies of norms, and maps inside the feed-forward that have adapters."""
    norms = [f"model.layers.{layer}.input_layernorm" for layer in range(3)]
    config = peft.LoraConfig(
        target_modules=["gate_proj"], modules_to_save=norms, init_lora_weights=False
    )
    model, ids = peft.get_peft_model(tiny_model(), config).train(), tokens(2, 12)
    names, expected = list(model.state_dict()), step(model, ids)
    assert liger_forwards.use_liger(model)[0] == "RMSNorm (10)"  # originals and copies
    found = step(model, ids)
    assert list(model.state_dict()) == names and len(calls) == 10
    assert any("input_layernorm.modules_to_save" in name for name in found[1])
    assert any("gate_proj.lora_A" in name for name in found[1])
    assert largest_difference(found[1], expected[1]) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
def test_liger_itself_in_a_model(monkeypatch, dtype, tolerance):
    """bf16: relative to the largest entry, a few roundings of 2^-8 in each of three layers."""
    pytest.importorskip("liger_kernel")
    monkeypatch.setattr(liger_forwards, "FUSED_FROM", 1)
    model, ids = tiny_model().train().to("cuda", dtype), tokens(2, 64).cuda()
    expected = step(model, ids)
    assert len(liger_forwards.use_liger(model)) == 3
    found = step(model, ids)
    torch.testing.assert_close(found[0], expected[0], rtol=tolerance, atol=0)
    floats = [
        {name: gradient.float() for name, gradient in each[1].items()} for each in (found, expected)
    ]
    assert largest_difference(*floats) < tolerance
