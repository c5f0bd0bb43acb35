"""RMSNorm on a CPU: transformers' numbers, gradients of fp64, and second derivatives."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tape_ds.kernels.rms_norm import rms_norm, why_not
from tape_ds.models.rms_norm import RMSNorm


def example(*shape):
    torch.manual_seed(0)
    norm = LlamaRMSNorm(shape[-1])
    norm.weight.data.normal_()
    return torch.randn(*shape, requires_grad=True), norm


def exact(x, weight):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("shape", [(2, 5, 16), (1, 5, 4, 16), (3, 16)])
def test_values_and_gradients(shape):
    x, norm = example(*shape)
    found = rms_norm(x, norm.weight, norm.variance_epsilon)
    assert torch.equal(found, norm(x))
    upstream = torch.randn_like(found)
    gradients = torch.autograd.grad(found, (x, norm.weight), upstream)
    plain = torch.autograd.grad(norm(x), (x, norm.weight), upstream)
    wide = [each.detach().double().requires_grad_() for each in (x, norm.weight)]
    expected = torch.autograd.grad(exact(*wide), wide, upstream.double())
    for own, torchs, right in zip(gradients, plain, expected, strict=True):
        allowed = 2 * (torchs.double() - right).abs().max() + 1e-7 * right.abs().max()
        assert (own.double() - right).abs().max() <= allowed


def test_second_derivatives():
    """What the backward keeps is no constant when it is differentiated itself."""
    x, norm = example(2, 5, 16)

    def second(function):
        first = torch.autograd.grad(function(x).sin().sum(), (x, norm.weight), create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), (x, norm.weight))

    found = second(lambda x: rms_norm(x, norm.weight, norm.variance_epsilon))
    for own, right in zip(found, second(norm), strict=True):
        assert torch.allclose(own, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trained", ["x", "weight"])
def test_one_gradient_alone(trained):
    x, norm = example(2, 5, 16)
    x.requires_grad_(trained == "x")
    norm.weight.requires_grad_(trained == "weight")
    own = x if trained == "x" else norm.weight
    (found,) = torch.autograd.grad(rms_norm(x, norm.weight, 1e-6).square().sum(), own)
    (right,) = torch.autograd.grad(norm(x).square().sum(), own)
    assert torch.allclose(found, right, atol=1e-5)


def test_other_dtypes_and_devices_are_left_to_others():
    x, norm = example(2, 5, 16)
    assert why_not(x, norm.weight) is None
    assert why_not(x.bfloat16(), norm.weight) is not None
    assert why_not(x.double(), norm.weight.double()) is not None
    assert why_not(x.to("meta"), norm.weight) is not None


def test_the_models_norm_uses_it():
    x, _ = example(2, 5, 16)
    assert RMSNorm(16)(x).grad_fn.name() == "rms_normBackward"
