"""torch's CPU kernel behind an operator of ours: any widths, grouped queries, nothing wide kept for later."""

import pytest
import torch

from tape_ds.kernels import reference
from tape_ds.kernels.cpu_attention import cpu_attention

CASES = {
    "wide value": (4, 4, 6, 12),
    "narrow value": (4, 4, 12, 5),
    "grouped": (6, 2, 8, 8),
    "grouped and wide": (6, 2, 8, 16),
    "one key head": (5, 1, 4, 12),
}


def case(name, dtype, tokens=17, keys=None):
    heads, groups, key_width, value_width = CASES[name]
    sizes = (
        (tokens, heads, key_width),
        (keys or tokens, groups, key_width),
        (keys or tokens, groups, value_width),
    )
    return [torch.randn(2, *size, dtype=dtype).transpose(1, 2).requires_grad_() for size in sizes]


def plain(q, k, v, causal, scale):
    allowed = (
        torch.ones(q.shape[2], k.shape[2]).tril().bool()
        if causal
        else torch.ones(q.shape[2], k.shape[2]).bool()
    )
    return reference.attention(q, k, v, allowed[None], scale)[0]


@pytest.mark.parametrize(
    "name, keys", [*((name, None) for name in CASES), ("grouped and wide", 23)]
)
def test_it_is_attention_to_the_last_digits_of_fp64(name, keys):
    tensors, causal = case(name, torch.float64, keys=keys), keys is None
    mine, theirs = cpu_attention(*tensors, causal, 0.3), plain(*tensors, causal, 0.3)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
    direction = torch.randn_like(mine)
    for a, b in zip(
        *(torch.autograd.grad(x, tensors, direction) for x in (mine, theirs)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "dtype, name",
    [
        (torch.float32, "grouped and wide"),
        (torch.bfloat16, "grouped and wide"),
        (torch.float16, "wide value"),
    ],
)
def test_rounding_is_no_worse_than_plain_torch_s(name, dtype):
    exact = case(name, torch.float64)
    rounded = [x.detach().to(dtype).requires_grad_() for x in exact]
    truth = plain(*[x.double() for x in rounded], True, 0.3)
    allowed = torch.ones(17, 17).tril().bool()
    k, v = (x.repeat_interleave(rounded[0].shape[1] // x.shape[1], dim=1) for x in rounded[1:])
    matrices = (rounded[0] @ k.mT * 0.3).masked_fill(~allowed, -torch.inf).softmax(-1) @ v
    mine, direction = (
        cpu_attention(*rounded, True, 0.3),
        torch.randn(truth.shape, dtype=torch.float64),
    )

    def with_gradients(out):
        return [out, *torch.autograd.grad(out, rounded, direction.to(out.dtype))]

    for name, a, b, t in zip("oqkv", *map(with_gradients, (mine, matrices, truth)), strict=True):
        worst, error = ((x.double() - t.double()).abs().max() for x in (b, a))
        assert error <= 2 * worst + 1e-7, f"{name}: {error} against {worst}"


def test_nothing_padded_or_repeated_is_kept():
    """Six query heads of 8 over two groups and a value of 16: torch's own form would keep q, k, v of 6 heads of 16."""
    tensors, kept = case("grouped and wide", torch.float32), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        out = cpu_attention(*tensors, True, 0.3)
    statistics = 2 * 6 * 17
    assert sum(kept) == sum(x.numel() for x in tensors) + out.numel() + statistics
