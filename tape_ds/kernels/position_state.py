"""The position state ``e = start + deviation`` as attention weights it: formed in one pass, in the value's dtype.

As two operations the sum would be written in fp32 before it is rounded: six passes over the state for two.

Shape letters: B batch, G key/value heads, T tokens, C columns.
"""

import torch
from torch import Tensor

from tape_ds.kernels.operators import operator


def position_state(start_B1TC: Tensor, deviation_BGTC: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the state [B, G, T, C], summed in the wider of both dtypes and rounded once.

    Args:
        start_B1TC: shared by the batch, the heads or neither; never needs a gradient.
        deviation_BGTC: what layers learned.
        dtype: of the result.
    """
    return _form(start_B1TC, deviation_BGTC, dtype)


@operator("tape_ds::position_state")
def _form(start: Tensor, deviation: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.add(start, deviation, out=torch.empty_like(deviation, dtype=dtype))


@_form.register_fake
def _(start: Tensor, deviation: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(deviation, dtype=dtype)


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.dtype = inputs[1].dtype


def _gradients(ctx, gradient):  # type: ignore[no-untyped-def]
    return None, gradient.to(ctx.dtype), None


_form.register_autograd(_gradients, setup_context=_keep)
