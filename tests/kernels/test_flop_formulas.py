"""torch's FLOP counter on the operators: their own sizes, whatever a kernel pads or computes again."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from tape_ds.kernels import flop_formulas, jit  # noqa: F401 (registers the formulas)
from tape_ds.kernels.cpu_attention import cpu_attention
from tape_ds.kernels.decode_attention import decode_attention
from tape_ds.kernels.linear_cross_entropy import linear_cross_entropy
from tape_ds.kernels.position_mix import position_mix
from tape_ds.kernels.tape_attention import tape_attention

B, T, S, H, G, K, I, D, V = 2, 5, 7, 4, 2, 16, 3, 8, 11


def counted(function, *tensors):
    """FLOPs of the forward, and of forward and backward."""
    with FlopCounterMode(display=False) as forward:
        out = function(*tensors)
    if not isinstance(out, tuple):
        out = (out,)
    if not out[0].requires_grad:
        return forward.get_total_flops(), None
    with FlopCounterMode(display=False) as both:
        again = function(*tensors)
        torch.autograd.backward(again, [torch.ones_like(x) for x in out])
    return forward.get_total_flops(), both.get_total_flops()


def leaves(*shapes):
    return [torch.randn(*shape, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("wide", [False, True])
def test_attention(wide):
    """Two products forward, five backward; a wide value doubles the second's and two of the others'."""
    q, k, v = leaves((B, H, T, K), (B, G, S, K), (B, G, S, 2 * K if wide else K))
    unit = 2 * B * H * T * S * K
    forward, both = (3, 3 + 7) if wide else (2, 2 + 5)
    assert counted(lambda *qkv: cpu_attention(*qkv, False, 1.0), q, k, v) == (
        forward * unit,
        both * unit,
    )


@pytest.mark.skipif(not jit.INTERPRETED, reason="fp32 kernels are for Triton's interpreter")
def test_attention_by_triton():
    q, k, v, e = leaves((B, H, T, K), *3 * [(B, G, S, K)])
    unit = 2 * B * H * T * S * K
    assert counted(tape_attention, q, k, v, e) == (3 * unit, 10 * unit)
    with torch.no_grad():
        assert counted(decode_attention, q, k, v, e) == (3 * unit, None)
        assert counted(decode_attention, q, k, v) == (2 * unit, None)


def test_both_updates_of_the_state():
    start = torch.randn(1, 1, T, K)
    state, moved, attend, gate, expand, contract = leaves(
        (B, G, T, K), (B, H, T, K), (G, H), (B, T, I), (I, G), (G, I)
    )

    def mix(*tensors):
        return position_mix(start, *tensors, dtype=torch.float32)

    mixing, feeding = 2 * B * T * G * H * K, 2 * B * T * G * G * (I + K)
    assert counted(mix, state, moved, attend, gate, expand, contract) == (
        mixing + feeding,
        3 * (mixing + feeding),
    )
    assert counted(mix, state, moved, attend, None, None, None)[0] == mixing
    assert counted(mix, state, None, None, gate, expand, contract)[0] == feeding


def test_the_head_computes_its_gradients_in_the_forward():
    (hidden, weight), labels = leaves((T, D), (V, D)), torch.zeros(T, dtype=torch.int64)
    product = 2 * T * D * V
    assert counted(linear_cross_entropy, hidden, weight, labels) == (3 * product, 3 * product)
    assert counted(linear_cross_entropy, hidden, weight.detach(), labels)[0] == 2 * product


def test_every_operator_with_products_has_a_formula():
    """Rotation multiplies, but not matrices; a norm and scaling a gradient neither."""
    without = {"position_state", "rms_norm", "rotate", "rotate_backward", "scaled_gradient"}
    named = {
        name.split("::")[1]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("tape_ds::")
    }
    with_formula = {
        str(operator).split(".")[-1]
        for operator in flop_registry
        if str(operator).startswith("tape_ds.")
    }
    assert named - without == with_formula
