"""The truth of attention is the reference's, and a rival that departs from it is found out."""

import functools

import pytest
import torch

from benchmarks import attention, calls
from benchmarks.contest import Entry, Setting, run
from benchmarks.shapes import Attention
from tape_ds.kernels import reference

SETTING = Setting(torch.device("cpu"), torch.float32)
SHAPE = Attention(2, 4, 2, 24, 8)


def causal(tokens):
    return torch.ones(1, tokens, tokens, dtype=torch.bool).tril()


def test_the_truth_is_the_reference_s():
    inputs = attention.draw(SHAPE, SETTING)
    wide = inputs.double()
    leaves = [x.requires_grad_() for x in (wide.q, wide.k, torch.cat((wide.v, wide.e), dim=-1))]
    out, _ = reference.attention(*leaves, causal(24), scale=8**-0.5)
    gradients = torch.autograd.grad(out, leaves, torch.cat((wide.dv, wide.de), dim=-1))
    truth = attention.truth_of(inputs, "tape")
    for name, value in zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True):
        torch.testing.assert_close(truth[name].value, value.detach(), rtol=1e-12, atol=1e-12)
        assert 0 < truth[name].allowed < 1e-5


def test_rope_s_truth_is_that_of_the_value_alone():
    inputs = attention.draw(SHAPE, SETTING)
    out, _ = reference.attention(*(x.double() for x in inputs[:3]), causal(24), scale=8**-0.5)
    torch.testing.assert_close(attention.truth_of(inputs, "rope")["out"].value, out, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", [attention.APART, attention.WIDE, attention.THRICE])
def test_every_layout_gives_back_both_halves(layout):
    v, e = torch.randn(2, 1, 3, 5, 8).unbind()
    assert torch.equal(layout.output(layout.values(v, e)), torch.cat((v, e), dim=-1))
    assert torch.equal(layout.gradient(layout.returned(v, e)), torch.cat((v, e), dim=-1))


def wrong_scale():
    """Padded without keeping the scale of the true width: easily forgotten."""

    def call(q, k, v):
        q, k = (torch.nn.functional.pad(x, (0, v.shape[-1] - x.shape[-1])) for x in (q, k))
        return calls.plain_attention(q, k, v)

    return call


def no_gradient_to_keys():
    return lambda q, k, v: calls.plain_attention(q, k.detach() + 0 * k, v)


@pytest.mark.parametrize("make, tensor", [(wrong_scale, None), (no_gradient_to_keys, "dk")])
def test_a_rival_that_computes_something_else_is_found_out(make, tensor):
    inputs = attention.draw(SHAPE, SETTING)
    asked = attention.contest(SHAPE, SETTING)

    def leaves(layout):
        values = layout.values(inputs.v, inputs.e)
        return tuple(x.detach().requires_grad_() for x in (inputs.q, inputs.k, *values))

    build = functools.partial(attention._runner, make, attention.WIDE, leaves, inputs)
    asked = asked._replace(entries=[Entry("broken", "tape", build)])
    (finding,) = run(asked, SETTING, 1, head_start=True, say=lambda line: None)
    assert finding.status == "wrong"
    assert finding.total is None
    if tensor:
        assert finding.reason.startswith(tensor)


def test_whole_matrices_are_asked_for_up_to_a_size(monkeypatch):
    monkeypatch.setitem(calls.MATRIX_ENTRIES, "cpu", 2 * 4 * 24 * 24 - 1)
    findings = run(attention.contest(SHAPE, SETTING), SETTING, 1, head_start=True, say=lambda line: None)
    status = {f"{each.encoding} {each.rival}": each for each in findings}
    for name in ("rope sdpa math", "tape one call, sdpa math", "tape attend reference"):
        assert status[name].status == "refused"
        assert "its matrix of scores would have 4.6e+03 entries" in status[name].reason
    assert status["tape two calls, sdpa flash"].status == "timed"


def test_the_interpreter_is_never_timed(monkeypatch):
    monkeypatch.setattr(calls.jit, "INTERPRETED", True)
    for make in (functools.partial(calls.ours, False), functools.partial(calls.attend, "triton")):
        with pytest.raises(ValueError, match="interpreter is on"):
            make()
