"""The plain forms are the truth in every other test: here they meet the formulas, one scalar at a time."""

import math

import pytest
import torch

from tape_ds.kernels import reference


def test_attention_is_the_softmax_written_out():
    """Query head h reads key/value head h // (H / G); a row without keys is 0, not the mean over everything."""
    q, k, v = (
        torch.randn(1, heads, 3, width).double() for heads, width in ((4, 2), (2, 2), (2, 5))
    )
    allowed = torch.tensor([[[1, 0, 0], [0, 0, 0], [1, 0, 1]]]).bool()
    out, weights = reference.attention(q, k, v, allowed, 0.7)
    for h in range(4):
        torch.testing.assert_close(out[0, h, 0], v[0, h // 2, 0])
        assert (out[0, h, 1] == 0).all() and (weights[0, h, 1] == 0).all()
        a, b = (math.exp(0.7 * float(q[0, h, 2] @ k[0, h // 2, s])) for s in (0, 2))
        torch.testing.assert_close(
            out[0, h, 2], (a * v[0, h // 2, 0] + b * v[0, h // 2, 2]) / (a + b)
        )


@pytest.mark.parametrize("heads, groups", [(4, 4), (4, 2), (4, 1)])
def test_rotation_turns_the_pair_j_and_j_plus_half(heads, groups):
    """Llama's pairing; neighbouring pairs (GPT-J's) would make every converted checkpoint nonsense."""
    x, angles = torch.randn(2, heads, 5, 8).double(), torch.randn(2, groups, 5, 4).double()
    rotated = reference.rotate(x, torch.cat((angles.cos(), angles.sin()), -1))
    turn = torch.polar(torch.ones_like(angles), angles).repeat_interleave(heads // groups, 1)
    expected = torch.complex(x[..., :4], x[..., 4:]) * turn
    torch.testing.assert_close(rotated, torch.cat((expected.real, expected.imag), -1))


@pytest.mark.parametrize("shape", [(1, 4, 3, 5), (2, 1, 3, 5)])
def test_a_bias_is_added_to_the_scaled_scores(shape):
    """After the scale, in fp32 or wider, shared over rows and heads where its size is 1; the mask still rules."""
    q, k, v = torch.randn(2, 4, 3, 6), torch.randn(2, 2, 5, 6), torch.eye(5).expand(2, 2, 5, 5)
    bias, allowed = 3 * torch.randn(shape), torch.ones(2, 3, 5).tril(2).bool()
    allowed[1, 2] = False
    out, weights = reference.attention(q, k, v, allowed, 0.3, bias)
    torch.testing.assert_close(out, weights)  # the value is the identity
    for b in range(2):
        for h in range(4):
            for t in range(3):
                seen = allowed[b, t].nonzero()[:, 0].tolist()
                scores = [
                    math.exp(
                        0.3 * float(q[b, h, t] @ k[b, h // 2, s])
                        + float(bias.expand(2, 4, 3, 5)[b, h, t, s])
                    )
                    for s in seen
                ]
                expected = torch.zeros(5)
                expected[seen] = torch.tensor(scores) / sum(scores) if seen else torch.tensor([])
                torch.testing.assert_close(weights[b, h, t], expected, rtol=1e-5, atol=1e-6)
    half, _ = reference.attention(*(x.bfloat16() for x in (q, k, v)), allowed, 0.3, bias)
    rounded, _ = reference.attention(
        *(x.bfloat16() for x in (q, k, v)), allowed, 0.3, bias.bfloat16()
    )
    assert half.dtype == torch.bfloat16 and not torch.equal(half, rounded)


def test_position_mix_is_the_paper_s_sum_over_ranks():
    """``W_down diag(SiLU(g)) W_up e``, each entry as a double sum."""
    state, gate = torch.randn(1, 2, 3, 4).double(), torch.randn(1, 3, 5).double()
    expand, contract = torch.randn(5, 2).double(), torch.randn(2, 5).double()
    update = reference.position_mix(state, gate, expand, contract)
    for g in range(2):
        for t in range(3):
            for c in range(4):
                expected = 0.0
                for i in range(5):
                    up = sum(float(expand[i, h] * state[0, h, t, c]) for h in range(2))
                    silu = float(gate[0, t, i]) / (1 + math.exp(-float(gate[0, t, i])))
                    expected += float(contract[g, i]) * silu * up
                assert float(update[0, g, t, c]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_fp32_and_rounded_once(dtype):
    """A reference that rounds in between would make every kernel look better than it is."""
    q, k, v = (torch.randn(1, 2, 33, 8).to(dtype) for _ in range(3))
    allowed = torch.ones(33, 33).tril().bool()[None]
    out, weights = reference.attention(q, k, v, allowed, 0.3)
    exact, _ = reference.attention(q.double(), k.double(), v.double(), allowed, 0.3)
    assert (out.dtype, weights.dtype) == (dtype, torch.float32)
    half_a_step = torch.finfo(dtype).eps / 2 * exact.abs() + 1e-6
    assert ((out.double() - exact).abs() <= half_a_step).all()
    state = torch.randn(1, 2, 33, 8)
    turned = reference.rotate(q, state)
    exact = reference.rotate(q.double(), state.double())
    assert turned.dtype == dtype
    assert (
        (turned.double() - exact).abs() <= torch.finfo(dtype).eps / 2 * exact.abs() + 1e-5
    ).all()


@pytest.mark.parametrize("function", ["attention", "rotate", "rotate_whole", "position_mix"])
def test_gradients(function):
    """The references are differentiated in tests of kernels: finite differences agree with them."""

    def leaf(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    allowed = torch.tensor([[[1, 0, 0], [0, 0, 0], [1, 1, 1]]]).bool()
    calls = {
        "attention": (
            lambda q, k, v, bias: reference.attention(q, k, v, allowed, 0.5, bias)[0],
            (leaf(1, 2, 3, 2), leaf(1, 1, 3, 2), leaf(1, 1, 3, 4), leaf(1, 2, 3, 3)),
        ),
        "rotate": (reference.rotate, (leaf(1, 4, 3, 4), leaf(1, 2, 3, 4))),
        "rotate_whole": (reference.rotate_whole, (leaf(1, 4, 3, 4), leaf(1, 2, 3, 8))),
        "position_mix": (
            reference.position_mix,
            (leaf(1, 2, 3, 4), leaf(1, 3, 5), leaf(5, 2), leaf(2, 5)),
        ),
    }
    assert torch.autograd.gradcheck(*calls[function])
