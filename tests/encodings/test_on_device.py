"""Limits that a forward refuses: the host looks where it can, and a device that it would wait for looks itself."""

import pytest
import torch

from tape_ds.encodings.on_device import refuse_above


def test_the_largest_number_is_told():
    refuse_above(torch.tensor([[3, 7]]), 7, "never {}")
    with pytest.raises(ValueError, match="not 9"):
        refuse_above(torch.tensor([[9, 8]]), 7, "not {}")


def test_nan_is_no_number_above():
    """A NaN is for the guards, which name the step."""
    refuse_above(torch.tensor([torch.nan]), 7.0, "never {}")


@pytest.mark.gpu
def test_a_gpu_looks_itself():
    refuse_above(torch.tensor([7.0], device="cuda"), 7.0, "never {}")
    torch.cuda.synchronize()
