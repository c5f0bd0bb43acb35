"""The state as attention weights it: the plain sum rounded once, in one pass, and its gradient."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tape_ds.kernels.position_state import position_state


def case(dtype, heads=4, shared=1):
    start = torch.randn(1, shared, 5, 6)
    return start, torch.randn(2, heads, 5, 6).to(dtype).requires_grad_()


@pytest.mark.parametrize(
    "dtype, deviation_dtype, shared",
    [(torch.float64, torch.float64, 4), (torch.float32, torch.bfloat16, 1), (torch.bfloat16, torch.float32, 4)],
)
def test_it_is_the_sum_rounded_once(dtype, deviation_dtype, shared):
    start, deviation = case(deviation_dtype, shared=shared)
    expected = (start + deviation).to(dtype)
    found = position_state(start, deviation, dtype)
    assert torch.equal(found, expected) and found.dtype == dtype
    direction = torch.randn(expected.shape).to(dtype)
    mine, theirs = (torch.autograd.grad(x, deviation, direction)[0] for x in (found, expected))
    assert torch.equal(mine, theirs) and mine.dtype == deviation_dtype


def test_torch_knows_the_operator():
    torch.library.opcheck(torch.ops.tape_ds.position_state, (*case(torch.float32), torch.float32))


class Made(TorchDispatchMode):
    """Bytes of what operators make."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.bytes += out.nbytes
        return out


def test_nothing_but_the_result_is_written():
    start, deviation = case(torch.bfloat16)
    with Made() as made:
        found = position_state(start, deviation, torch.bfloat16)
    assert made.bytes == found.nbytes
