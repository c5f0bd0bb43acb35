"""What every encoding promises of a forward call. An encoding in the registry is held to all of it without a line here.

Training is in test_contract_training.py, files and devices in test_contract_saving.py, caches in test_generation.py.
"""

import pytest
import torch

from tape_ds.attention import sdpa
from tests.models.helpers import (
    CACHE_EXACT,
    ENCODINGS,
    INVARIANT,
    WITH_EVERY_HEADS,
    rounding,
    tiny_model,
    tokens,
)

# Every encoding by the fused kernels; the other ways to attend once for each way an encoding enters the model.
WAYS = [("sdpa", name) for name in ENCODINGS] + [
    (backend, name) for backend in ("reference", "sdpa by document") for name in WITH_EVERY_HEADS
]


@pytest.fixture
def build(monkeypatch):
    """A tiny model that attends in one of the ways."""

    def model(way, encoding, **changes):
        if way == "sdpa by document":
            monkeypatch.setattr(sdpa, "MASK_ENTRIES", 0)
        return tiny_model(encoding=encoding, attention_backend=way.split(" ")[0], **changes)

    return model


@pytest.mark.parametrize("way, encoding", WAYS)
def test_later_tokens_change_nothing_earlier(build, way, encoding):
    model = build(way, encoding)
    ids = tokens(2, 20)
    other = ids.clone()
    other[:, 12:] = tokens(2, 8)
    documents = torch.tensor([[0] * 20, [0] * 7 + [1] * 13])
    for arguments in ({}, {"document_ids": documents}):
        first, second = (model(x, **arguments).logits for x in (ids, other))
        assert torch.equal(first[:, :12], second[:, :12])
        assert not torch.equal(first[:, 12:], second[:, 12:])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_order_counts(encoding):
    """Even without positions the causal mask gives an order, from the second layer on; an encoding must not undo it."""
    model, ids = tiny_model(encoding=encoding), tokens(1, 12)
    swapped = ids.clone()
    swapped[0, 3], swapped[0, 7] = ids[0, 7], ids[0, 3]
    assert ids[0, 3] != ids[0, 7]
    assert (model(ids).logits[:, -1] - model(swapped).logits[:, -1]).abs().max() > 1e-4


@pytest.mark.parametrize("shift", [1, 130_000])
@pytest.mark.parametrize("encoding", INVARIANT)
def test_a_shift_of_all_positions_changes_nothing(encoding, shift):
    """Only distances count. (Angles are rounded to fp32 after the shift, hence not to the last bit.)"""
    model, ids = tiny_model(encoding=encoding), tokens(2, 33)
    places = torch.arange(33)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            model(ids).logits, model(ids, position_ids=places + shift).logits, rtol=0, atol=2e-5
        )


@pytest.mark.parametrize("way, encoding", WAYS)
@pytest.mark.parametrize("side", ["left", "right", "holes"])
def test_padding_changes_no_real_token(build, side, way, encoding):
    model = build(way, encoding)
    ids = tokens(1, 12)
    real = {
        "left": list(range(5, 17)),
        "right": list(range(12)),
        "holes": [0, 1, 2, 5, 6, 8, 9, 10, 11, 13, 14, 16],
    }
    mask, padded, places = (
        torch.zeros(1, 17, dtype=torch.long),
        tokens(1, 17),
        torch.zeros(1, 17, dtype=torch.long),
    )
    mask[:, real[side]], padded[:, real[side]], places[:, real[side]] = 1, ids, torch.arange(12)
    alone = model(ids).logits
    together = model(
        torch.cat((padded, tokens(1, 17))), torch.cat((mask, torch.ones_like(mask))), places
    ).logits
    torch.testing.assert_close(together[:1, real[side]], alone, rtol=0, atol=rounding(model, ids))
    assert together.isfinite().all()


@pytest.mark.parametrize("way, encoding", [way for way in WAYS if way[1] in CACHE_EXACT])
def test_packed_documents_are_separate_runs(build, way, encoding):
    """Documents may be interleaved, and position ids go straight through a border: it comes from document ids alone."""
    model, ids = build(way, encoding), tokens(1, 20)
    documents = torch.tensor([[0] * 6 + [1] * 5 + [0] * 2 + [-1] * 2 + [2] * 5], dtype=torch.int32)
    packed = model(ids, document_ids=documents).logits
    for document in range(3):
        places = (documents[0] == document).nonzero()[:, 0]
        alone = model(ids[:, places], position_ids=places[None]).logits
        torch.testing.assert_close(packed[:, places], alone, rtol=0, atol=rounding(model, ids))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_batch_is_its_rows(encoding):
    """Sequences that differ in length, positions and documents: none leaks into its neighbour."""
    model, ids = tiny_model(encoding=encoding), tokens(3, 14)
    places = torch.stack(
        [torch.arange(14), torch.arange(14) * 2 + 3, torch.arange(14).clamp(max=9)]
    )
    documents = torch.tensor([[0] * 14, [0] * 5 + [1] * 9, [0] * 10 + [-1] * 4])
    together = model(ids, position_ids=places, document_ids=documents).logits
    for row in range(3):
        one = slice(row, row + 1)
        alone = model(ids[one], position_ids=places[one], document_ids=documents[one]).logits
        real = documents[row] >= 0
        torch.testing.assert_close(
            together[one, real], alone[:, real], rtol=0, atol=rounding(model, ids)
        )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_default_device_moves_nothing(encoding, training):
    """``torch.set_default_device`` catches every tensor made without a device: draws, slopes, frequencies, digits."""
    model, ids, logits = tiny_model(encoding=encoding).train(training), tokens(1, 9), []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        with torch.device(device):
            logits.append(model(ids, use_cache=not training).logits)
    assert torch.equal(*logits)
