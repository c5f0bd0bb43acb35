"""The loss with weights against its formula in fp64: value and every gradient."""

import pytest
import torch
from torch.nn import functional as F

from tape_ds.kernels.linear_cross_entropy import linear_cross_entropy
from tape_ds.kernels.weighted_cross_entropy import weighted_cross_entropy, weights_of
from tests.kernels.test_linear_cross_entropy import (
    PRECISIONS,
    TOKENS,
    assert_as_exact_as_plain,
    inputs,
    unwritten_memory_is_nan,  # noqa: F401 - a fixture
)

CAP = 1.5


def given(cap):
    """Weights, or losses with a short context, some unknown; NaN or nonsense where no label is."""
    values = torch.rand(TOKENS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if cap is None:
        values *= 4
        # no label is there
        values[[0, 9]] = torch.tensor([torch.inf, torch.nan], dtype=torch.float64)
        return values
    values = 4 + 3 * values
    values[[2, 20, 21]] = torch.nan
    return values


def formula(hidden, weight, labels, values, cap):
    logits = F.linear(hidden, weight)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    losses = F.cross_entropy(logits, labels, ignore_index=-100, reduction="none")
    weights = values.to(losses.dtype)
    if cap is not None:
        weights = torch.exp(values - losses.detach()).clamp(max=cap)
        weights = torch.where(values.isnan(), 1.0, weights).to(losses.dtype)
    chosen = labels != -100
    return torch.stack(
        ((weights * losses)[chosen].sum(), losses[chosen].sum(), weights[chosen].sum())
    )


def outcome(function, hidden, weight, labels, values, cap, divisor=23.0):
    hidden, weight = (x.detach().clone().requires_grad_() for x in (hidden, weight))
    sums = function(hidden, weight, labels, values, cap)
    (sums[0] / divisor).backward()
    found = {"d_hidden": hidden.grad, "d_weight": weight.grad}
    return found | dict(zip(("loss", "plain", "weights"), sums.detach(), strict=True))


@pytest.mark.parametrize("cap", [None, CAP], ids=["exact", "longce"])
@pytest.mark.parametrize(
    "dtype, chunk", [("fp64", 1), ("fp64", 36), ("fp32", 8), ("bf16", 8), ("fp16", 37)]
)
def test_sums_and_gradients_are_the_formula_s(dtype, chunk, cap):
    arguments = inputs(PRECISIONS[dtype])
    wide = [x.detach().double() if x.is_floating_point() else x for x in arguments]
    exact = outcome(formula, *wide, given(cap), cap)
    same_precision = outcome(formula, *arguments, given(cap), cap)

    def chunked(hidden, weight, labels, values, cap):
        return weighted_cross_entropy(hidden, weight, labels, values, cap=cap, chunk=chunk)

    found = outcome(chunked, *arguments, given(cap), cap)
    assert_as_exact_as_plain(found, same_precision, exact)
    assert (found["d_hidden"][arguments[2] == -100] == 0).all()
    assert exact["weights"] != (arguments[2] != -100).sum(), "weights of one would test nothing"


def test_weights_of_one_are_the_plain_loss():
    """Every gradient to the last digit; the value is another order of the same sum."""
    hidden, weight, labels = inputs(torch.float32)

    def plain(hidden, weight, labels, values, cap):
        loss = linear_cross_entropy(hidden, weight, labels, chunk=8)
        return torch.stack((loss, loss.detach(), (labels != -100).sum().to(loss)))

    def weighted(hidden, weight, labels, values, cap):
        return weighted_cross_entropy(hidden, weight, labels, values, cap=cap, chunk=8)

    expected = outcome(plain, hidden, weight, labels, None, None)
    for values, cap in ((torch.ones(TOKENS), None), (torch.full((TOKENS,), torch.nan), CAP)):
        found = outcome(weighted, hidden, weight, labels, values, cap)
        assert torch.equal(found["d_hidden"], expected["d_hidden"])
        assert torch.equal(found["d_weight"], expected["d_weight"])
        for name in ("loss", "plain", "weights"):
            torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=0)


def test_a_weight_from_two_losses():
    """Worked by hand: better with the long context, the same, worse, so much better that the cap holds, not read."""
    short = torch.tensor([3.0, 2.0, 1.0, 900.0, torch.nan])
    long = torch.tensor([2.0, 2.0, 2.0, 2.0, 2.0])
    found = weights_of(short, long, 5.0)
    torch.testing.assert_close(found, torch.tensor([2.7182818, 1.0, 0.36787944, 5.0, 1.0]))


def test_without_gradients_and_without_labels():
    hidden, weight, labels = inputs(torch.float32)
    with torch.no_grad():
        sums = weighted_cross_entropy(hidden, weight, labels, torch.ones(TOKENS), chunk=8)
    assert not sums.requires_grad
    found = outcome(
        lambda h, w, y, values, cap: weighted_cross_entropy(h, w, y, values),
        *(hidden, weight, torch.full_like(labels, -100), torch.ones(TOKENS), None),
    )
    assert all((value == 0).all() for value in found.values())


def test_shapes_that_do_not_fit():
    hidden, weight, labels = inputs()
    with pytest.raises(ValueError, match=r"weights \[N\] are needed"):
        weighted_cross_entropy(hidden, weight, labels, torch.ones(TOKENS - 1))
    with pytest.raises(ValueError, match="chunk = 0"):
        weighted_cross_entropy(hidden, weight, labels, torch.ones(TOKENS), chunk=0)
