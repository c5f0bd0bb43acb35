"""The divergence of two heads against the plain formula, with gradients, whatever the chunks."""

import pytest
import torch
from torch.nn import functional as F

from tape_ds.kernels.linear_kl import linear_kl

TOKENS, WIDTH, TEACHER_WIDTH, VOCABULARY = 13, 6, 5, 11


def case(dtype=torch.float64):
    """Student's hidden states and head, teacher's."""
    shapes = (
        (TOKENS, WIDTH),
        (VOCABULARY, WIDTH),
        (TOKENS, TEACHER_WIDTH),
        (VOCABULARY, TEACHER_WIDTH),
    )
    return [
        torch.randn(shape, dtype=dtype).requires_grad_(at < 2) for at, shape in enumerate(shapes)
    ]


def plain(hidden, weight, teacher, teacher_head):
    log_q, log_p = (
        F.log_softmax(x @ w.t(), dim=-1) for x, w in ((hidden, weight), (teacher, teacher_head))
    )
    return F.kl_div(log_q, log_p, reduction="sum", log_target=True)


@pytest.mark.parametrize("chunk", [1, 4, 13, None])
def test_it_is_the_plain_formula(chunk):
    tensors = case()
    found = linear_kl(*tensors, chunk=chunk)
    mine = torch.autograd.grad(3 * found, tensors[:2])
    expected = plain(*tensors)
    theirs = torch.autograd.grad(3 * expected, tensors[:2])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_gradients_are_its_slopes():
    hidden, weight, teacher, head = case()
    assert torch.autograd.gradcheck(
        lambda x, w: linear_kl(x, w, teacher, head, chunk=4), (hidden, weight)
    )


def test_sixteen_bits_come_back_in_their_own_dtype():
    tensors = case(torch.bfloat16)
    found = linear_kl(*tensors, chunk=4)
    found.backward()
    exact = plain(*(x.detach().double() for x in tensors))
    assert (
        found.dtype == torch.float32 and [x.grad.dtype for x in tensors[:2]] == [torch.bfloat16] * 2
    )
    torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0)


def test_no_tokens_and_a_frozen_head():
    hidden, weight, teacher, head = case()
    assert linear_kl(hidden[:0], weight, teacher[:0], head) == 0
    (gradient,) = torch.autograd.grad(linear_kl(hidden, weight.detach(), teacher, head), hidden)
    torch.testing.assert_close(
        gradient, torch.autograd.grad(plain(hidden, weight, teacher, head), hidden)[0]
    )


def test_shapes_that_do_not_fit():
    hidden, weight, teacher, head = case()
    for wrong in ((hidden[:5], weight, teacher, head), (hidden, weight, teacher, head[1:])):
        with pytest.raises(ValueError, match="of the teacher are needed"):
            linear_kl(*wrong)
