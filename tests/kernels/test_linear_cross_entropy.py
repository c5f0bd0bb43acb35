"""The chunked loss against plain cross-entropy: values, every gradient, what it never computes, and what it refuses."""

import functools

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tape_ds.kernels import linear_cross_entropy as module
from tape_ds.kernels.linear_cross_entropy import (
    CHUNK_BYTES,
    CHUNK_MULTIPLE,
    chunk_tokens,
    linear_cross_entropy,
)

TOKENS, HIDDEN, VOCABULARY = 37, 24, 53
PRECISIONS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
CHUNKED = module._chunked
FLOOR = 1e-7
"""Added to the allowed error, relative to the tensor's largest entry: one rounding of fp32."""


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan():
    """torch fills what ``empty`` returns with NaN in its deterministic mode."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all() and torch.ones(2).new_empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


def inputs(dtype=torch.float64, tokens=TOKENS, scale=1.0):
    """Hidden states, weight and labels; some tokens at the ends and a whole chunk of 8 predict nothing."""
    hidden = (scale * torch.randn(tokens, HIDDEN, dtype=torch.float64)).to(dtype)
    weight = (0.5 * torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64)).to(dtype)
    labels = torch.randint(VOCABULARY, (tokens,))
    labels[[0, 1, 5, tokens - 1]] = -100
    labels[8:17] = -100
    return hidden.requires_grad_(), weight.requires_grad_(), labels


def plain(hidden, weight, labels, ignore_index=-100):
    """What transformers computes: logits in the GEMM's precision, the loss of them in fp32."""
    logits = F.linear(hidden, weight)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="sum")


def outcome(function, hidden, weight, labels, divisor=23.0):
    """The mean loss and both gradients, by name."""
    hidden, weight = (x.detach().clone().requires_grad_() for x in (hidden, weight))
    loss = function(hidden, weight, labels) / divisor
    loss.backward()
    return {"loss": loss.detach(), "d_hidden": hidden.grad, "d_weight": weight.grad}


def assert_as_exact_as_plain(found, same_precision, exact):
    for name, value in found.items():
        assert value.dtype == same_precision[name].dtype, name
        largest = exact[name].abs().max()
        allowed = 2 * (same_precision[name].double() - exact[name]).abs().max() + FLOOR * largest
        error = (value.double() - exact[name]).abs().max()
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


@pytest.mark.parametrize(
    "dtype, chunk",
    [
        ("fp64", 1),
        ("fp64", 36),
        ("fp32", 8),
        ("fp32", 100),
        ("bf16", 8),
        ("bf16", None),
        ("fp16", 37),
    ],
)
def test_loss_and_gradients(dtype, chunk):
    arguments = inputs(PRECISIONS[dtype])
    exact = outcome(
        plain, *(x.detach().double() if x.is_floating_point() else x for x in arguments)
    )
    same_precision = outcome(plain, *arguments)
    found = outcome(lambda h, w, y: linear_cross_entropy(h, w, y, chunk=chunk), *arguments)
    assert_as_exact_as_plain(found, same_precision, exact)
    assert (found["d_hidden"][arguments[2] == -100] == 0).all()


def test_slopes_in_fp64():
    hidden, weight = (
        torch.randn(rows, 4, dtype=torch.float64, requires_grad=True) for rows in (9, 7)
    )
    labels = torch.tensor([0, 6, -100, 3, 3, -100, 5, 1, 2])
    assert torch.autograd.gradcheck(
        lambda h, w: linear_cross_entropy(h, w, labels, chunk=4), (hidden, weight)
    )


@pytest.mark.parametrize(
    "stream, masters", [(torch.float32, True), (torch.bfloat16, True), (torch.float32, False)]
)
def test_autocast(stream, masters):
    """Products in bf16 as ``F.linear``'s, each gradient in its own tensor's dtype, and the weight's no worse than one
    that was rounded to bf16 on its way."""
    hidden, weight, labels = inputs(torch.float32)
    hidden = hidden.detach().to(stream)
    weight = weight.detach() if masters else weight.detach().bfloat16()

    def under_autocast(function):
        def run(*arguments):
            with torch.autocast("cpu", torch.bfloat16):
                return function(*arguments)

        return run

    exact = outcome(plain, hidden.double(), weight.double(), labels)
    same_precision = outcome(under_autocast(plain), hidden, weight, labels)
    found = outcome(
        under_autocast(lambda h, w, y: linear_cross_entropy(h, w, y, chunk=8)),
        hidden,
        weight,
        labels,
    )
    assert_as_exact_as_plain(found, same_precision, exact)


def test_products_are_on_the_operands_as_they_are_and_logits_a_chunk_at_a_time():
    """An upcast of them takes a GEMM off the tensor cores (TRL measured 6 times the time)."""
    seen = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
                seen.append({x.dtype for x in args[-2:]})
            if isinstance(result, torch.Tensor) and result.ndim == 2 and VOCABULARY in result.shape:
                rows = result.shape[1 - result.shape.index(VOCABULARY)]
                assert rows in (8, TOKENS % 8, HIDDEN), f"{function} made {tuple(result.shape)}"
            return result

    hidden, weight, labels = (x.detach() for x in inputs(torch.bfloat16))
    with Spy():
        # its body alone: an operator as a whole runs below the mode
        module._chunked.kernel(hidden, weight, labels, -100, 8, torch.bfloat16, True, True)
    chunks_with_labels = 4  # of 5: the second has none
    assert len(seen) == 3 * chunks_with_labels and all(
        dtypes == {torch.bfloat16} for dtypes in seen
    )


@pytest.mark.parametrize("for_hidden, for_weight", [(True, False), (False, True), (False, False)])
def test_only_the_gradients_asked_for(for_hidden, for_weight):
    hidden, weight, labels = inputs()
    _, *made = CHUNKED(hidden, weight, labels, -100, 8, torch.float64, for_hidden, for_weight)
    assert [x.numel() > 0 for x in made] == [for_hidden, for_weight]
    loss = linear_cross_entropy(
        hidden.requires_grad_(for_hidden), weight.requires_grad_(for_weight), labels, chunk=8
    )
    assert loss.requires_grad == (for_hidden or for_weight)


def test_nothing_leaves_a_row_without_label():
    hidden, weight, labels = inputs()
    with torch.no_grad():
        poisoned = hidden.masked_fill((labels == -100)[:, None], torch.nan)
    clean, found = (outcome(linear_cross_entropy, x, weight, labels) for x in (hidden, poisoned))
    assert all(torch.equal(clean[name], found[name]) for name in clean)


def test_no_labels_at_all():
    hidden, weight, labels = inputs(torch.float32)
    for rows in (0, TOKENS):
        found = outcome(
            linear_cross_entropy, hidden[:rows], weight, torch.full_like(labels[:rows], -100)
        )
        assert all((value == 0).all() for value in found.values())
        assert found["d_weight"].shape == weight.shape and found["d_hidden"].shape == (rows, HIDDEN)


def test_an_entry_of_the_vocabulary_may_be_ignored():
    hidden, weight, labels = inputs()
    moved = labels.masked_fill(labels == -100, 3)
    expected = outcome(functools.partial(plain, ignore_index=3), hidden, weight, moved)
    found = outcome(
        functools.partial(linear_cross_entropy, ignore_index=3, chunk=8), hidden, weight, moved
    )
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-12)


def test_there_is_no_second_derivative():
    hidden, weight, labels = inputs()
    factor = torch.ones((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(
        factor * linear_cross_entropy(hidden, weight, labels), hidden, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize("label", [VOCABULARY, -1])
def test_a_label_out_of_range_is_an_error(label):
    hidden, weight, labels = inputs()
    labels[20] = label
    with pytest.raises(IndexError):
        linear_cross_entropy(hidden, weight, labels, chunk=8)


@pytest.mark.parametrize("vocabulary", [53, 49_152, 10**7])
def test_a_chunk_is_as_large_as_its_bytes_allow(vocabulary):
    tokens = chunk_tokens(vocabulary)
    assert tokens % CHUNK_MULTIPLE == 0 and tokens >= CHUNK_MULTIPLE
    assert 4 * vocabulary * tokens <= CHUNK_BYTES or tokens == CHUNK_MULTIPLE
    assert 4 * vocabulary * (tokens + CHUNK_MULTIPLE) > CHUNK_BYTES


def test_fp16_holds_the_gradient_of_many_tokens():
    """The weight's gradient is a sum before the backward divides it, which is beyond fp16's range (65,504)."""
    tokens = 4096
    hidden = torch.full((tokens, HIDDEN), 30.0, dtype=torch.float16)
    weight = torch.zeros(VOCABULARY, HIDDEN, dtype=torch.float16)
    found = outcome(
        linear_cross_entropy, hidden, weight, torch.zeros(tokens, dtype=torch.long), divisor=tokens
    )
    expected = outcome(
        plain,
        hidden.double(),
        weight.double(),
        torch.zeros(tokens, dtype=torch.long),
        divisor=tokens,
    )
    torch.testing.assert_close(
        found["d_weight"].double(), expected["d_weight"], rtol=2**-10, atol=0
    )


def test_the_factor_of_16_bit_gradients_is_not_rounded():
    """A bf16 gradient times an fp32 scalar tensor rounds the scalar, and all gradients are off alike."""
    gradient, factor = (
        torch.full((64, 2), 3.0, dtype=torch.bfloat16),
        torch.tensor(1 + 2**-9 + 2**-12),
    )
    scaled = module.scaled_gradient(gradient, factor, torch.float32)
    assert (scaled == 3 * factor).all() and scaled[0, 0] != (gradient * factor)[0, 0]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_on_a_gpu(dtype):
    """The products that sum into fp32 there take another way than on a CPU."""
    hidden, weight, labels = (x.detach().cuda() for x in inputs(PRECISIONS[dtype], tokens=300))
    exact = outcome(plain, hidden.double(), weight.double(), labels)
    same_precision = outcome(plain, hidden, weight, labels)
    found = outcome(
        lambda h, w, y: linear_cross_entropy(h, w, y, chunk=128), hidden, weight, labels
    )
    assert_as_exact_as_plain(found, same_precision, exact)


def test_shapes_that_do_not_fit():
    hidden, weight, labels = inputs()
    with pytest.raises(ValueError, match=r"labels \[N\] are needed"):
        linear_cross_entropy(hidden, weight, labels[1:])
    with pytest.raises(ValueError, match="chunk = 0"):
        linear_cross_entropy(hidden, weight, labels, chunk=0)
