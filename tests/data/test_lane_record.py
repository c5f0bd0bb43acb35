"""The record of a lane: what is written, read again, and noticed."""

import errno
import os

import numpy as np
import pytest

from tape_ds.data.lane_record import LaneRecord
from tape_ds.data.sources import Document
from tape_ds.errors import UserError

SHARDS = [[("one", 3), ("three", 0)], [], [("eleven", 7)]]


def document(text):
    return Document(f"doc:{text}", text)


def write(path, shards=SHARDS):
    record = LaneRecord(path)
    for shard in shards:
        for text, tokens in shard:
            record.add(document(text), tokens)
        record.end()


def known(path):
    """(tokens, whole) of every shard the record knows something of."""
    record, found = LaneRecord(path), []
    while (ahead := record.ahead()) != ([], False):
        found.append(ahead)
        record.leave_out(len(ahead[0]))
    return found


def test_golden_file(tmp_path):
    """The very bytes: a change makes records of earlier runs unreadable and must raise streaming.FORMAT."""
    write(tmp_path / "lane")
    entries = np.fromfile(tmp_path / "lane", "<i4").reshape(-1, 2).tolist()
    assert entries == [[4, 3], [6, 0], [-1, 0], [-1, 0], [7, 7], [-1, 0]]


def test_written_and_read_again(tmp_path):
    write(tmp_path / "deep" / "lane")
    assert known(tmp_path / "deep" / "lane") == [([3, 0], True), ([], True), ([7], True)]
    record = LaneRecord(tmp_path / "deep" / "lane")
    record.leave_out(2)
    record.leave_out(0)
    record.replay(document("eleven"))
    assert record.ahead() == ([], True)


def test_without_a_path_nothing_is_known_or_kept(tmp_path):
    write(None)
    assert known(None) == known(tmp_path / "absent") == []
    assert list(tmp_path.iterdir()) == []


def test_two_writers_at_once_leave_one_record(tmp_path):
    """Two ranks read the same lane: one from the beginning, one further on, in turns."""
    write(tmp_path / "expected")
    path = tmp_path / "lane"
    write(path, SHARDS[:1])
    late = LaneRecord(path)
    late.leave_out(2)
    write(path, SHARDS[:2])
    late.end()
    early = LaneRecord(path)
    late.add(document("eleven"), 7)
    late.end()
    early.leave_out(2)
    early.leave_out(0)
    early.add(document("eleven"), 7)
    assert path.read_bytes() == (tmp_path / "expected").read_bytes()
    early.end()
    assert path.read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda raw: raw[:-1], [([3, 0], True), ([], True), ([7], False)]),
        (lambda raw: raw[:8] + bytes(8) + raw[16:], [([3], False)]),
        (lambda raw: bytes(len(raw)), []),
    ],
)
def test_a_cut_entry_and_a_hole_end_what_is_known(tmp_path, damage, left):
    path = tmp_path / "lane"
    write(path)
    path.write_bytes(damage(path.read_bytes()))
    record, found = LaneRecord(path), []
    for tokens, _ in left:
        found.append(record.ahead())
        record.leave_out(len(tokens))
    assert found == left
    if not left:
        assert record.ahead() == ([], False)


def test_other_data_are_noticed(tmp_path):
    """Read or tokenised again, a document must be the one recorded, and a shard end where it ended."""
    write(tmp_path / "lane")

    def fails(*steps):
        record = LaneRecord(tmp_path / "lane")
        for step in steps[:-1]:
            step(record)
        with pytest.raises(UserError, match="not those this record was made of") as caught:
            steps[-1](record)
        return str(caught.value)

    assert "doc:two! is not the document it was" in fails(lambda record: record.replay(document("two!")))
    assert "the shard ends earlier" in fails(lambda record: record.replay(None))
    assert "doc:one is not" in fails(lambda record: record.add(document("one"), 4))
    first = (lambda record: record.add(document("one"), 3), lambda record: record.add(document("three"), 0))
    assert "doc:more is not" in fails(*first, lambda record: record.add(document("more"), 1))
    assert "the shard ends earlier" in fails(first[0], lambda record: record.end())


def refuses_after(count, monkeypatch):
    """A disk that takes ``count`` bytes more."""
    write, left = os.pwrite, [count]

    def limited(file, raw, offset):
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(file, raw[: left[0]], offset)
        left[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", limited)


@pytest.mark.parametrize(
    ("count", "kept"), [(0, []), (12, [([3], False)]), (24, [([3, 0], True)]), (28, [([3, 0], True)])]
)
def test_a_full_disk_ends_the_record_and_not_the_run(tmp_path, monkeypatch, caplog, count, kept):
    """An entry that is cut short counts for nothing, and nothing is written behind it."""
    refuses_after(count, monkeypatch)
    write(tmp_path / "lane")
    monkeypatch.undo()
    assert known(tmp_path / "lane") == kept
    write(tmp_path / "lane")
    assert known(tmp_path / "lane") == [([3, 0], True), ([], True), ([7], True)]


def test_it_is_said_once_for_all_lanes(tmp_path, monkeypatch, caplog):
    refuses_after(0, monkeypatch)
    for lane in range(3):
        write(tmp_path / f"lane-{lane}")
    (said,) = caplog.messages
    assert "is full" in said and "no longer kept" in said
