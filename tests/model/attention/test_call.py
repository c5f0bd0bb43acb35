"""``cu_seqlens`` as document ids."""

import pytest
import torch

from tape_ds.model.attention import attend, documents_of
from tests.model.attention.test_attend import inputs


@pytest.mark.parametrize(
    "borders, keys, ids",
    [
        ([0, 3, 7, 9], None, [0, 0, 0, 1, 1, 1, 1, 2, 2]),
        ([0, 3, 7], 9, [0, 0, 0, 1, 1, 1, 1, -1, -1]),
        ([0, 2, 2, 4], None, [0, 0, 2, 2]),
        ([0], 2, [-1, -1]),
    ],
)
def test_every_token_gets_its_document(borders, keys, ids):
    made = documents_of(torch.tensor(borders, dtype=torch.int32), keys)
    assert made.dtype == torch.int32 and made.tolist() == [ids]


def test_a_packed_row_is_its_documents_one_by_one():
    q, k, v = (x.detach()[:1] for x in inputs())
    packed = attend(q, k, v, cu_seqlens=torch.tensor([0, 4, 9]))
    alone = [attend(q[:, :, at], k[:, :, at], v[:, :, at]) for at in (slice(0, 4), slice(4, 9))]
    torch.testing.assert_close(packed, torch.cat(alone, dim=2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("borders, keys", [([1, 3], None), ([0, 3, 2], None), ([], None), ([0, 5], 4)])
def test_what_cannot_be_borders_is_refused(borders, keys):
    with pytest.raises(ValueError, match="cu_seqlens"):
        documents_of(torch.tensor(borders), keys)


def test_borders_stand_alone_and_for_one_row():
    q, k, v = inputs()
    borders, ids = torch.tensor([0, 9]), torch.zeros(1, 9, dtype=torch.int32)
    for given, rows in (({}, 2), ({"document_ids": ids}, 1)):
        with pytest.raises(ValueError, match="one row: give it alone"):
            attend(q[:rows], k[:rows], v[:rows], cu_seqlens=borders, **given)
