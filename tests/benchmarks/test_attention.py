"""The truth of attention is the reference's, and an implementation that departs from it is found out."""

import pytest
import torch

from benchmarks import attention
from benchmarks.benchmark_case import Setting, run
from benchmarks.shapes import document_lengths, read_shape
from tape_ds.kernels import reference

CPU = torch.device("cpu")
SETTING = Setting(CPU, torch.float32)
SHAPE = read_shape("B2 H4 G2 T24 K8")
PACKED = read_shape("B2 H4 G2 T24 K8 N3")


def whole_matrix(q, k, v):
    return (attention.plain_attention(q, k, v),)


def causal(tokens):
    return torch.ones(1, tokens, tokens, dtype=torch.bool).tril()


def test_the_truth_is_the_reference_s():
    inputs = attention.draw(SHAPE, SETTING)
    wide = attention.AttentionInputs(*(x.double() for x in inputs))
    leaves = [x.requires_grad_() for x in (wide.q, wide.k, torch.cat((wide.v, wide.e), dim=-1))]
    out, _ = reference.attention(*leaves, causal(24), scale=8**-0.5)
    gradients = torch.autograd.grad(out, leaves, torch.cat((wide.dv, wide.de), dim=-1))
    truth = attention.attention_truth(inputs, "tape", (24,))
    for name, value in zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True):
        torch.testing.assert_close(truth[name].value, value.detach(), rtol=1e-12, atol=1e-12)
        assert 0 < truth[name].allowed < 1e-5


def test_a_packed_truth_is_that_of_every_document_alone():
    inputs = attention.draw(PACKED, SETTING)
    lengths = document_lengths(24, 3)
    assert len(lengths) == 3 and sum(lengths) == 24 and len(set(lengths)) > 1
    packed = attention.attention_truth(inputs, "tape", lengths)
    ends = [sum(lengths[: at + 1]) for at in range(3)]
    for start, end in zip((0, *ends), ends, strict=False):
        alone = attention.attention_truth(
            attention.AttentionInputs(*(x[:, :, start:end] for x in inputs)), "tape", (end - start,)
        )
        for name, expected in alone.items():
            torch.testing.assert_close(
                packed[name].value[:, :, start:end], expected.value, rtol=0, atol=1e-12
            )


def test_a_rival_that_looks_across_documents_is_found_out():
    blind = attention.Implementation("tape", "blind", lambda: whole_matrix, joined=True)
    (finding,) = run(attention.case(PACKED, SETTING, [blind]), SETTING, 1, head_start=True)
    assert finding.status == "wrong"


def wrong_scale():
    """Padded without keeping the scale of the true width: easily forgotten."""

    def call(q, k, v):
        q, k = (torch.nn.functional.pad(x, (0, v.shape[-1] - x.shape[-1])) for x in (q, k))
        return whole_matrix(q, k, v)

    return call


def no_gradient_to_keys():
    return lambda q, k, v: whole_matrix(q, k.detach() + 0 * k, v)


@pytest.mark.parametrize("make, tensor", [(wrong_scale, None), (no_gradient_to_keys, "dk")])
def test_a_rival_that_computes_something_else_is_found_out(make, tensor):
    broken = attention.Implementation("tape", "broken", make, joined=True)
    (finding,) = run(attention.case(SHAPE, SETTING, [broken]), SETTING, 1, head_start=True)
    assert finding.status == "wrong"
    assert finding.times == {}
    if tensor:
        assert finding.reason.startswith(tensor)
