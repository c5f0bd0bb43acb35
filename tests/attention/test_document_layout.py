"""Where documents begin and end: worked out from ids or position ids, or given by a collator."""

import pytest
import torch
from accelerate.utils import send_to_device

from tape_ds.attention.document_layout import (
    DocumentLayout,
    check_packed_sequences,
    ids_of_positions,
    layout_of_ids,
    layout_of_packed_sequences,
)
from tests.attention.test_attend import DOCUMENTS, MASKS, PLACES


@pytest.mark.parametrize("documents, places", [mask for mask in MASKS if mask[0] != "none"])
def test_every_token_is_found_again(documents, places):
    """Document by document: its keys, and of these the queries, each once and in order; padding nowhere."""
    queries, offset = PLACES[places]
    ids = DOCUMENTS[documents]
    packed = DocumentLayout(torch.tensor(ids), queries, offset).packed
    key_order = range(18) if packed.key_order is None else packed.key_order.tolist()
    query_order = range(2 * queries) if packed.query_order is None else packed.query_order.tolist()
    keys = [(row, place) for row, place in (divmod(at, 9) for at in key_order)]
    asked = [(row, place + offset) for row, place in (divmod(at, queries) for at in query_order)]
    expected = [
        [(row, place) for place in range(9) if ids[row][place] == document]
        for row in range(2)
        for document in sorted({*ids[row]} - {-1})
    ]
    for cu, tokens, window in (
        (packed.cu_keys, keys, (0, 9)),
        (packed.cu_queries, asked, (offset, offset + queries)),
    ):
        of_documents = [
            [at for at in document if window[0] <= at[1] < window[1]] for document in expected
        ]
        assert [
            tokens[a:b] for a, b in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)
        ] == of_documents
    assert packed.longest_keys == max(map(len, expected))


@pytest.mark.parametrize(
    "documents, whole", [("packed", True), ("left", True), ("scattered", False), ("holes", False)]
)
def test_gaps_inside_documents_are_known(documents, whole):
    assert DocumentLayout(torch.tensor(DOCUMENTS[documents]), 9).contiguous == whole


def test_one_document_a_sequence_has_no_borders():
    assert layout_of_ids(torch.tensor([[4, 4], [0, 0]]), 2) is None
    assert layout_of_packed_sequences(torch.tensor([0, 2, 4]), 2, sequences=2, tokens=2) is None


def test_a_collator_s_borders_are_those_of_the_ids():
    ids = torch.tensor([[0, 0, 0, 1], [2, 3, 3, 3]])
    stated = layout_of_packed_sequences(torch.tensor([0, 3, 4, 5, 8]), 3, sequences=2, tokens=4)
    worked_out = layout_of_ids(ids, 4)
    assert stated.known and not worked_out.known and not stated.may_pad
    assert torch.equal(stated.ids_BS, ids) and stated.ids_BS.dtype == torch.int32
    for one, other in zip(stated.packed, worked_out.packed, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("given", [[1, 4, 8], [0, 5, 4, 8], [0, 3, 4], [0, 4, 9], [0, 3, 8]])
def test_borders_that_do_not_fit_the_sequences_are_refused(given):
    """The last leaves a sequence without a begin: a document would continue from one sequence into the next."""
    with pytest.raises(ValueError, match="cu_seq_lens_q"):
        check_packed_sequences(torch.tensor(given), 8, sequences=2, tokens=4)


def test_a_document_longer_than_the_longest_is_refused():
    """Kernels would leave its end out."""
    with pytest.raises(ValueError, match="max_length_q = 2: a document has 3 tokens"):
        check_packed_sequences(torch.tensor([0, 3, 4]), 2, sequences=1, tokens=4)


def test_a_position_that_does_not_increase_starts_a_document():
    packed, posed = [0, 1, 2, 0, 0, 1], [0, 1, 7, 8, 20, 21]
    assert ids_of_positions(torch.tensor([packed, posed])).tolist() == [[0, 0, 0, 1, 2, 2], [0] * 6]


@pytest.mark.parametrize("stated", [True, False], ids=["stated", "worked out"])
def test_they_follow_a_block_to_its_device(stated):
    """accelerate moves what a block of a model on several GPUs is given, if it has ``to``: masks stayed behind."""
    ids = torch.tensor([[0, 0, 1]])
    layout = (
        layout_of_packed_sequences(torch.tensor([0, 2, 3]), 2, 1, 3)
        if stated
        else layout_of_ids(ids, 3)
    )
    moved = send_to_device({"layout": layout}, torch.device("meta"))["layout"]
    assert moved.ids_BS.device.type == "meta" and moved.known == stated
    assert layout.to("meta") is moved, "made once for all blocks there"
    assert layout.to("cpu") is layout
    if stated:
        assert moved.packed.cu_keys.device.type == "meta" and moved.packed.longest_keys == 2
