"""Labels are read back as what they were made from."""

import pytest

from benchmarks import shapes
from benchmarks.groups import GROUPS


@pytest.mark.parametrize(
    "shape, sizes",
    [
        (shapes.AttentionShape(1, 32, 8, 8192, 128), {"B": 1, "H": 32, "G": 8, "T": 8192, "K": 128}),
        (shapes.AttentionShape(1, 4, 4, 64, 8, 16), {"B": 1, "H": 4, "G": 4, "T": 64, "K": 8, "N": 16}),
        (shapes.Sweep("dK dQ", shapes.AttentionShape(1, 4, 4, 64, 8)), {"B": 1, "H": 4, "G": 4, "T": 64, "K": 8}),
        (shapes.Decode(2, 9, 3, 8192, 64), {"B": 2, "H": 9, "G": 3, "T": 1, "S": 8192, "K": 64}),
        (shapes.Mix(8, 12, 12, 48, 1024, 64), {"B": 8, "H": 12, "G": 12, "I": 48, "T": 1024, "K": 64}),
        (shapes.BenchmarkModel("155M", 6, 1, 2048), {"L": 6, "B": 1, "T": 2048}),
    ],
)
def test_labels_are_read_back(shape, sizes):
    assert shapes.parse(shape.label) == sizes


def test_no_two_shapes_of_a_group_share_a_label():
    for group in GROUPS.values():
        for listed in (group.cuda, group.cpu):
            assert len({shape.label for shape in listed}) == len(listed)


@pytest.mark.parametrize("tokens, documents", [(8192, 1), (8192, 16), (8192, 64), (3, 3)])
def test_documents_fill_a_sequence(tokens, documents):
    lengths = shapes.document_lengths(tokens, documents)
    assert (len(lengths), sum(lengths), min(lengths) > 0) == (documents, tokens, True)
    assert lengths == shapes.document_lengths(tokens, documents)
