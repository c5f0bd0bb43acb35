"""How launchers of Triton kernels describe tensors of four dimensions whose rows are contiguous."""

from torch import Tensor


def rows(x: Tensor) -> Tensor:
    """``x``, copied only where its last dimension is not contiguous: an expanded gradient's is not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def strides(x: Tensor | None) -> tuple[int, ...]:
    """Elements from one row of the batch, head and token to the next; zeros where there is no tensor, and along a
    dimension of size 1, which a kernel may then index as if it were shared."""
    if x is None:
        return 0, 0, 0
    return tuple(0 if x.shape[axis] == 1 else x.stride(axis) for axis in range(3))
