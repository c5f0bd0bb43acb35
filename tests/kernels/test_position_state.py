"""The state as attention weights it: the plain sum rounded once, in one pass, and its gradient."""

import pytest
import torch

from tape_ds.kernels.position_state import position_state
from tests.attention.test_varlen import Watch


def case(dtype, heads=4, shared=1):
    start = torch.randn(1, shared, 5, 6)
    return start, torch.randn(2, heads, 5, 6).to(dtype).requires_grad_()


@pytest.mark.parametrize(
    "dtype, deviation_dtype, shared",
    [
        (torch.float64, torch.float64, 4),
        (torch.float32, torch.bfloat16, 1),
        (torch.bfloat16, torch.float32, 4),
    ],
)
def test_it_is_the_sum_rounded_once(dtype, deviation_dtype, shared):
    start, deviation = case(deviation_dtype, shared=shared)
    expected = (start + deviation).to(dtype)
    found = position_state(start, deviation, dtype)
    assert torch.equal(found, expected) and found.dtype == dtype
    direction = torch.randn(expected.shape).to(dtype)
    mine, theirs = (torch.autograd.grad(x, deviation, direction)[0] for x in (found, expected))
    assert torch.equal(mine, theirs) and mine.dtype == deviation_dtype


def test_nothing_but_the_result_is_written():
    start, deviation = case(torch.bfloat16)
    with Watch() as made:
        found = position_state(start, deviation, torch.bfloat16)
    assert made.allocated == found.nbytes
