"""Split-K attention against fp64: few queries, long caches, unseen parts of a cache."""

import pytest
import torch

from tape_ds.kernels.decode_attention import decode_attention
from tests.kernels.attention_cases import DEVICE, DTYPE, case, check, documents, nan_memory  # noqa: F401


def decode(example, with_state=True, **options):
    """What comes out: of value and state, or of a value alone."""
    inputs = example.inputs if with_state else example.inputs[:3]
    return [x for x in decode_attention(*inputs, **options) if x is not None]


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize(
    "shape, splits",
    [
        ({"queries": 1, "keys": 111, "width": 32, "heads": 6, "groups": 2, "batch": 2}, None),
        ({"queries": 1, "keys": 111, "width": 32, "heads": 6, "groups": 2, "batch": 2}, 9),
        ({"queries": 16, "keys": 63, "width": 16, "heads": 3, "groups": 1}, 3),
        ({"queries": 5, "keys": 100, "width": 32, "offset": 40}, 9),
        ({"queries": 5, "keys": 20, "width": 32, "offset": -3}, 3),
        ({"queries": 3, "keys": 50, "width": 32, "heads": 2, "groups": 2}, 1),
        ({"queries": 2, "keys": 45, "width": 80, "heads": 2}, 2),
        ({"queries": 2, "keys": 45, "width": 128, "heads": 2}, 2),
        (
            {
                "queries": 2,
                "keys": 100,
                "width": 64,
                "heads": 4,
                "groups": 2,
                "dtype": torch.float16,
            },
            3,
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_state", [True, False])
def test_output(shape, splits, with_state):
    """GQA and MQA, more rows than a block, unseen keys, queries before the first key, parts without keys."""
    example = case(**shape)
    found = decode(example, with_state, **example.options, splits=splits)
    assert len(found) == 1 + with_state
    check(found, example)


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.filterwarnings("ignore:.*(invalid value|All-NaN).*:RuntimeWarning")
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_padding_is_never_used(poison):
    """Left-padded sequences of unequal length, one of them padding alone; padded queries give 0."""
    ids = torch.cat(
        [documents((-1, 35), (0, 25)), documents((-1, 60)), documents((0, 20), (1, 38), (-1, 2))]
    )
    padding = (ids < 0)[:, None, :, None]
    example = case(4, 60, 32, batch=3, heads=2, document_ids=ids)
    q = example.q_BHTK.masked_fill(padding[:, :, -4:], poison)
    poisoned, clean = (
        [x.masked_fill(padding, fill) for x in example[1:4]] for fill in (poison, 0.0)
    )
    found = decode_attention(q, *poisoned, document_ids=ids, splits=3)
    check(found, example._replace(**dict(zip(example._fields[1:4], clean, strict=True))))
    assert all((x.masked_select(padding[:, :, -4:]) == 0).all() for x in found)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_documents_of_any_integers(dtype):
    """In uint8 nothing is below 0, and so nothing could be absent."""
    ids = documents((0, 15), (1, 25))
    example = case(2, 40, 16)
    found, expected = (
        torch.cat(decode(example, document_ids=each, splits=2)) for each in (ids.to(dtype), ids)
    )
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("nan_memory")
def test_a_slice_of_a_static_cache():
    """Value and state side by side in a larger buffer, whose rest, and what lies behind the last query, holds NaN."""
    buffer = torch.full((2, 2, 90, 3, 64), float("nan"), device=DEVICE, dtype=DTYPE)
    example = case(2, 70, 32, batch=2, heads=4, groups=2, offset=48)
    views = [
        buffer[:, :, :70, place, left : left + 32] for place, left in ((0, 0), (2, 0), (2, 32))
    ]
    for view, x in zip(views, example[1:4], strict=True):
        view[:, :, :50] = x[:, :, :50]
        x[:, :, 50:] = 0
    check(decode_attention(example.q_BHTK, *views, offset=48, splits=2), example)


def test_nothing_to_decode_and_nothing_to_see():
    assert [x.shape for x in decode(case(0, 5, 16))] == 2 * [(1, 1, 0, 16)]
    assert all((x == 0).all() for x in decode(case(2, 0, 16)))


def test_unusable_calls_are_refused():
    q, k, v = case(2, 20, 16)[:3]
    with pytest.raises(ValueError, match="17 queries per sequence are more than 16"):
        decode(case(17, 20, 16))
    with pytest.raises(ValueError, match="it has no gradient"):
        decode_attention(q, k, v.clone().requires_grad_())
    with pytest.raises(ValueError, match=r"scale 0\.0 is not above 0"):
        decode_attention(q, k, v, scale=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [32, 64, 80, 96, 128])
@pytest.mark.parametrize("with_state", [True, False])
def test_tensor_cores(width, with_state, dtype):
    """Long caches, new numbers each time: a race shows itself sooner or later."""
    for repeat in range(20):
        ids = documents((-1, 100), (0, 3900), batch=2) if repeat % 2 else None
        example = case(
            1 + 5 * (repeat % 3),
            4000,
            width,
            batch=2,
            heads=8,
            groups=2,
            dtype=dtype,
            document_ids=ids,
        )
        check(decode(example, with_state, document_ids=ids), example)


def test_calls_that_do_not_fit_are_refused():
    q, k, v = case(2, 20, 16)[:3]
    with pytest.raises(ValueError, match="17 queries per sequence are more than 16"):
        decode(case(17, 20, 16))
    with pytest.raises(ValueError, match="it has no gradient"):
        decode_attention(q, k, v.requires_grad_())
    ids = torch.zeros(1, 2, dtype=torch.int32, device=DEVICE)
    for wrong in ({"scale": -1.0}, {"splits": 0}, {"document_ids": ids}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            decode_attention(q, k, v.detach(), **wrong)
