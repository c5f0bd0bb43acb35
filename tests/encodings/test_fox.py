"""``fox``: what its columns stand for, in every dtype, over long texts, documents and caches."""

import pytest
import torch
from torch.nn import functional as F
from transformers import DynamicCache

from tape_ds.encodings.documents import last_cached, running_sums
from tests.models.helpers import tiny_model, tokens
from tests.models.test_cached_positions import Rounding


def layer_of(heads="gqa"):
    return tiny_model(heads, encoding="fox").model.layers[0].position


def last_scores(layer, log_f_BHT, dtype, groups):
    """What the columns add to the scores of the last query, zeros as the keys are, [B, H, T]."""
    batch, heads, length = log_f_BHT.shape
    q = torch.zeros(batch, heads, length, layer.head_dim, dtype=dtype)
    k = torch.zeros(batch, groups, length, layer.head_dim, dtype=dtype)
    q, k = layer.rotate(q, k, None, None, log_f_BHT)
    k = layer.accumulate(k, lambda: None, None, 0).repeat_interleave(heads // groups, dim=1)
    return (k.double() @ q[:, :, -1, :, None].double())[..., 0] * layer.head_dim**-0.5


@pytest.mark.parametrize(
    "dtype, heads, groups",
    [(torch.bfloat16, "gqa", 2), (torch.float16, "mha", 4), (torch.float32, "mqa", 1)],
)
def test_differences_are_exact_to_24_bits_of_the_sum_in_every_dtype(dtype, heads, groups):
    """At 4,000 a bf16 number is 16 away from the next; what counts is the difference of two of them."""
    layer, length = layer_of(heads), 6_000
    count = 8 if heads == "mqa" else 4
    log_f = F.logsigmoid(torch.randn(1, count, length))
    found = last_scores(layer, log_f, dtype, groups)
    sums = log_f.double().cumsum(-1)
    assert sums.abs().max() > 4_000
    torch.testing.assert_close(found - found[..., -1:], sums[..., -1:] - sums, rtol=0, atol=1e-3)


def test_each_head_reads_its_own_gates_and_one_gradient():
    layer = layer_of("gqa")
    log_f = F.logsigmoid(torch.randn(1, 4, 7)).requires_grad_()
    for dtype in (torch.float32, torch.bfloat16):
        (found,) = torch.autograd.grad(last_scores(layer, log_f, dtype, 2)[0, 1, 2], log_f)
        expected = torch.zeros_like(found)
        expected[0, 1, :3] = -1  # c_2, of the second head alone
        torch.testing.assert_close(found, expected, rtol=0, atol=0.01)


def test_sums_run_within_documents():
    """Interleaved ones, and padding that holds NaN."""
    numbers = torch.rand(1, 3, 12, dtype=torch.float64)
    documents = torch.tensor([[-1, 0, 0, 1, 0, -1, 1, 1, 0, 2, 1, 0]])
    numbers[..., documents[0] < 0] = torch.nan
    found = running_sums(numbers, documents)
    for number in range(3):
        own = documents[0] == number
        torch.testing.assert_close(found[..., own], numbers[..., own].cumsum(-1))


@pytest.mark.parametrize("buffered", [False, True], ids=["grown", "static"])
@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_token_continues_the_last_one_of_its_document(cut, buffered):
    """Looked up one by one."""
    documents = [[-1, 0, 0, 1, 0, -1, 1, 1, 0, 2, 1, 0], [-1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    given = F.pad(torch.tensor(documents), (0, 4)) if buffered else torch.tensor(documents)
    last, known = last_cached(given, torch.tensor(cut) if buffered else cut, 12 - cut)
    for row, ids in enumerate(documents):
        for token, own in enumerate(ids[cut:]):
            before = [place for place in range(cut) if ids[place] == own and own >= 0]
            assert bool(known[row, token]) == bool(before)
            assert not before or last[row, token] == before[-1]


def test_a_cache_that_changes_keys_is_refused():
    model, ids, past = tiny_model(encoding="fox"), tokens(1, 6), DynamicCache()
    past.layers, past.layer_class_to_replicate = [], Rounding
    model(ids[:, :5], past_key_values=past)
    with pytest.raises(ValueError, match="does not keep keys as they are"):
        model(ids[:, 5:], past_key_values=past)
