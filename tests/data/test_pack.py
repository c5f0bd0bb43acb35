"""Sequences from documents: golden ones worked by hand, and what each way of packing promises."""

import numpy as np
import pytest
from datasets import Dataset

from tape_ds.data import pack
from tape_ds.data.pack import FILL, PADDED, best_fit, cut, single, whole


def arrays(*documents):
    return [np.array(tokens, np.int32) for tokens in documents]


def both(found):
    return [
        (sequence["input_ids"].tolist(), sequence["document_ids"].tolist()) for sequence in found
    ]


def corpus(seed, longest=40, count=300):
    """Documents whose tokens tell document and place: 1000 * document + place."""
    rng = np.random.default_rng(seed)
    return [
        1000 * n + np.arange(size, dtype=np.int32)
        for n, size in enumerate(rng.integers(1, longest, count))
    ]


DOCUMENTS = arrays([1, 2, 3], [4, 5, 6, 7], [8], [9, 10, 11, 12, 13])


def test_golden_cut():
    """Worked by hand: 3 + 4 + 1 + 5 = 13 tokens in sequences of 4; the thirteenth is dropped."""
    assert both(cut(DOCUMENTS, 4)) == [
        ([1, 2, 3, 4], [0, 0, 0, 1]),
        ([5, 6, 7, 8], [0, 0, 0, 1]),
        ([9, 10, 11, 12], [0, 0, 0, 0]),
    ]


def test_golden_single():
    """Worked by hand: 1 to 3 and 8 fill no sequence of 4, and 13 is left over."""
    assert both(single(DOCUMENTS, 4)) == [([4, 5, 6, 7], [0] * 4), ([9, 10, 11, 12], [0] * 4)]


def test_golden_whole():
    """Worked by hand: 4 to 7 fill a sequence, 8 fits behind 3, 9 to 12 fill a sequence, and 13 has one of its own."""
    assert both(whole(DOCUMENTS, 4)) == [
        ([4, 5, 6, 7], [0, 0, 0, 0]),
        ([1, 2, 3, 8], [0, 0, 0, 1]),
        ([9, 10, 11, 12], [0, 0, 0, 0]),
        ([13], [0]),
    ]


def test_golden_whole_gives_the_oldest_sequence_out(monkeypatch):
    """Worked by hand, two open sequences of 4: 7 8 9 fits neither 1 2 3 nor 4 5 6, so the older is given out."""
    monkeypatch.setattr(pack, "OPEN_SEQUENCES", 2)
    found = both(whole(arrays([1, 2, 3], [4, 5, 6], [7, 8, 9], [0]), 4))
    assert [ids for ids, _ in found] == [[1, 2, 3], [4, 5, 6, 0], [7, 8, 9]]


def test_golden_whole_gives_full_sequences_out_at_once(monkeypatch):
    """Worked by hand, two open sequences of 4: 7 to 14 fill two sequences on their own. They would have driven out both
    sequences that still had room, and 0 and 15 would have had a sequence each."""
    monkeypatch.setattr(pack, "OPEN_SEQUENCES", 2)
    found = both(whole(arrays([1, 2, 3], [4, 5, 6], [7, 8, 9, 10, 11, 12, 13, 14], [0], [15]), 4))
    assert [ids for ids, _ in found] == [
        [7, 8, 9, 10],
        [11, 12, 13, 14],
        [1, 2, 3, 0],
        [4, 5, 6, 15],
    ]


def test_golden_ends(tmp_path):
    documents = Dataset.from_dict({"input_ids": [[1, 2], [3, 9], [9, 3]]})
    (sequence,) = pack.pack(documents, 8, tmp_path, "cut", end=9)["input_ids"]
    assert sequence == [1, 2, 9, 3, 9, 9, 3, 9]


@pytest.mark.parametrize("packing", FILL)
@pytest.mark.parametrize("length", [2, 7, 100])
def test_a_sequence_is_of_pieces_in_order(packing, length):
    """Types, lengths, and that document ids say exactly where one document ends and the next begins."""
    for sequence in FILL[packing](corpus(length, longest=150), length):
        ids, owners = sequence["input_ids"], sequence["document_ids"]
        assert ids.dtype == owners.dtype == np.int32
        assert len(ids) == len(owners) == length or (packing in PADDED and 1 <= len(ids) < length)
        border = ids[1:] // 1000 != ids[:-1] // 1000
        assert owners[0] == 0 and np.array_equal(np.diff(owners), border.astype(int))
        assert (np.diff(ids)[~border] == 1).all()


def test_golden_best_fit():
    """Worked by hand, sequences of 10: the 7 goes first, then the 6, the 4 beside the 6, the 3 beside the 7, and the 2
    alone; first fit, in the order of reading, fills none."""
    documents = arrays([1, 1, 1], [2] * 6, [3, 3], [4] * 4, [5] * 7)
    assert both(best_fit(documents, 10)) == [
        ([2] * 6 + [4] * 4, [0] * 6 + [1] * 4),
        ([1] * 3 + [5] * 7, [0] * 3 + [1] * 7),
        ([3, 3], [0, 0]),
    ]
    assert max(len(ids) for ids, _ in both(whole(documents, 10))) < 10


def test_golden_best_fit_takes_the_tightest_room():
    """Worked by hand, sequences of 10: beside 8 and 7 there is room for 2 and 3, and the 2 goes where it fits exactly,
    so that the 3 still has its place. A longer document gives its full sequences at once."""
    documents = arrays([1] * 7, [2] * 8, [3] * 2, [4] * 3, [5] * 20)
    assert [ids for ids, _ in both(best_fit(documents, 10))] == [
        *([[5] * 10] * 2),
        [1] * 7 + [4] * 3,
        [2] * 8 + [3] * 2,
    ]


def test_best_fit_holds_a_buffer_and_no_more(monkeypatch):
    """Whatever the corpus has: a buffer, the sequences that wait for the next one, and the document that is read."""
    monkeypatch.setattr(pack, "BUFFER_SEQUENCES", 4)
    monkeypatch.setattr(pack, "OPEN_SEQUENCES", 3)
    held = most = 0

    def read():
        nonlocal held, most
        for tokens in corpus(5, longest=150):
            held += len(tokens)
            most = max(most, held)
            yield tokens

    for sequence in best_fit(read(), 60):
        held -= len(sequence["input_ids"])
    assert held == 0 and 4 * 60 < most <= (4 + 3) * 60 + 150


def test_best_fit_pads_less_than_whole(monkeypatch):
    """Of documents of 1 to 63 tokens in sequences of 64; also where a buffer is a twentieth of the corpus."""
    documents = corpus(2, longest=64, count=2000)
    tokens = sum(map(len, documents))
    for buffer in (256, 50):
        monkeypatch.setattr(pack, "BUFFER_SEQUENCES", buffer)
        used = tokens / (64 * len(list(best_fit(documents, 64))))
        assert used > 0.98 > tokens / (64 * len(list(whole(documents, 64))))


def test_best_fit_is_a_function_of_the_documents_alone(tmp_path):
    """So a resumed run, and each of its processes, reads the same sequences; another way of packing has its own
    cache."""
    rows = Dataset.from_dict({"input_ids": [tokens.tolist() for tokens in corpus(6)]})
    first, again, other = (
        pack.pack(rows, 64, tmp_path / folder, way)
        for folder, way in (("a", "best_fit"), ("b", "best_fit"), ("a", "whole"))
    )
    assert first["input_ids"][:] == again["input_ids"][:] != other["input_ids"][:]


@pytest.mark.parametrize("packing", PADDED)
@pytest.mark.parametrize("length", [40, 200])
def test_whole_cuts_nothing_and_drops_nothing(length, packing):
    documents = corpus(1)
    found = list(FILL[packing](documents, length))
    pieces = [
        tuple(sequence["input_ids"][sequence["document_ids"] == owner].tolist())
        for sequence in found
        for owner in range(sequence["document_ids"].max() + 1)
    ]
    assert sorted(pieces) == sorted(tuple(tokens.tolist()) for tokens in documents)


def test_whole_pads_little():
    """Among 64 open sequences there is nearly always one that fits: above 95 % of the room is used (cut, apart, half
    is)."""
    documents = corpus(2, longest=64, count=2000)
    found = list(whole(documents, 64))
    assert sum(map(len, documents)) / (64 * len(found)) > 0.95
    assert len({len(sequence["input_ids"]) for sequence in found}) > 1


def test_single_keeps_what_fits():
    documents = corpus(4, longest=100)
    found = np.concatenate([sequence["input_ids"] for sequence in single(documents, 16)])
    expected = np.concatenate([tokens[: len(tokens) // 16 * 16] for tokens in documents])
    np.testing.assert_array_equal(found, expected)
