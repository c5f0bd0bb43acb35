"""Memory layouts of tensors of four dimensions: strides for Triton kernels, and memory for their results."""

import torch
from torch import Tensor


def empty_rows(
    like_BHTK: Tensor, columns: int | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Return new memory [B, T, H, columns] seen as [B, H, T, columns], the layout of the projections.

    Args:
        like_BHTK: gives every size, the dtype and the device.
        columns: in place of K.
        dtype: default: that of ``x``.
    """
    batch, heads, tokens, width = like_BHTK.shape
    shape = (batch, tokens, heads, width if columns is None else columns)
    return torch.empty(shape, dtype=dtype or like_BHTK.dtype, device=like_BHTK.device).transpose(
        1, 2
    )


def rows(x: Tensor) -> Tensor:
    """Return ``x``, copied only if its last dimension is not contiguous, as of an expanded gradient."""
    return x if x.stride(-1) == 1 else x.contiguous()


def near(x: Tensor) -> Tensor:
    """Return ``x``, copied to [B, T, heads, K] only if its last dimension is not contiguous or the heads of a token are
    further apart than 32 bits count: a kernel that reads a token's heads as one matrix counts its rows in 32 bits."""
    if x.stride(-1) == 1 and (x.shape[1] - 1) * x.stride(1) + x.shape[-1] < 2**31:
        return x
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def strides(x: Tensor | None) -> tuple[int, ...]:
    """Return the strides of batch, heads and tokens; 0 without a tensor and for a dimension of size 1."""
    if x is None:
        return 0, 0, 0
    return tuple(0 if x.shape[axis] == 1 else x.stride(axis) for axis in range(3))
