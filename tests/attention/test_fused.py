"""The backend ``triton`` behind ``attend``: which kernel answers what, and a whole model on it.

The kernels themselves are tested in tests/kernels; without a GPU Triton's interpreter runs them here too.
"""

import pytest
import torch

from tape_ds.attention import fused
from tape_ds.kernels import jit
from tests.attention.by_ids import attend
from tests.attention.test_attend import DOCUMENTS, PLACES, check, inputs, oracle
from tests.models.helpers import tiny_model, tokens

pytestmark = pytest.mark.skipif(
    not jit.INTERPRETED, reason="fp32 kernels are for Triton's interpreter"
)


@pytest.fixture
def taken(monkeypatch):
    """Names of the functions that answer."""
    names = []

    def watch(owner, name):
        inner = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, **more: names.append(name) or inner(*given, **more)
        )

    watch(fused.tape_attention, "tape_attention")
    watch(fused.decode_attention, "decode_attention")
    watch(fused, "attention_by_sdpa")
    return names


@pytest.mark.parametrize(
    "places, documents", [("full", "holes"), ("chunk", "scattered"), ("unused end", "none")]
)
def test_forward_and_gradients_are_the_definition_s(taken, places, documents):
    queries, offset = PLACES[places]
    qkv = inputs(queries=queries, key_width=16, value_width=32)
    check("triton", *qkv, DOCUMENTS[documents], offset, tolerance=4e-6)
    assert taken == ["tape_attention"]


def test_a_step_of_decoding_has_a_kernel_of_its_own(taken):
    q, k, v = (x.detach() for x in inputs(queries=1, key_width=16, value_width=32))
    out = attend(q, k, v, backend="triton")
    torch.testing.assert_close(out.double(), oracle(q, k, v, None, 8), rtol=0, atol=4e-6)
    attend(q, k, v[..., :16], backend="triton")
    assert taken == ["decode_attention", "decode_attention"]


def test_a_value_no_wider_than_the_key_is_torch_s(taken):
    q, k, v = inputs(key_width=16, value_width=16)
    torch.testing.assert_close(
        attend(q, k, v, backend="triton"), attend(q, k, v, backend="reference")
    )
    assert taken == ["attention_by_sdpa"]


@pytest.mark.parametrize(
    "value_width, arguments", [(32, {"scale": 0.0}), (32, {"softcap": 1.0}), (48, {})], ids=str
)
def test_calls_without_a_kernel_are_refused(value_width, arguments):
    """A scale of 0 and less turns the order of the scores."""
    q, k, v = inputs(key_width=16, value_width=value_width)
    with pytest.raises(ValueError, match=r"attention backend 'triton' .*; choose auto or sdpa"):
        attend(q, k, v, backend="triton", **arguments)


def test_a_whole_model_trains_and_generates_on_it(monkeypatch, taken):
    model, ids = tiny_model(head_dim=16, num_hidden_layers=2), tokens(1, 11)
    outcomes = []
    for backend in ("sdpa", "triton"):
        monkeypatch.setenv("TAPE_DS_ATTENTION", backend)
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients = [weight.grad.clone() for weight in model.parameters()]
        outcomes.append((gradients, model.generate(ids, max_new_tokens=3, do_sample=False)))
    assert {"tape_attention", "decode_attention", "attention_by_sdpa"} <= set(taken)
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    for a, b in zip(outcomes[0][0], outcomes[1][0], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)
