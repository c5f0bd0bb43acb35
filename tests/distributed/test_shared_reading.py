"""The ranks of a machine read the files of data sources together, each once."""

import pytest

from tape_ds import storage
from tape_ds.data.sources import file_identity as identities
from tape_ds.data.sources import parse
from tape_ds.data.sources.file_identity import file_identity
from tape_ds.distributed import process_info
from tape_ds.distributed.shared_reading import identify_together


@pytest.fixture
def read(monkeypatch):
    """Names of the files that are read, in their order; nothing is known of any before."""
    names = []
    digest = storage.digest
    monkeypatch.setattr(storage, "digest", lambda path: names.append(path.name) or digest(path))
    monkeypatch.setattr(identities, "_known", {})
    monkeypatch.setattr(identities, "SETTLED", -(10**18))
    return names


@pytest.fixture
def folder(tmp_path):
    for name in "abcde":
        (tmp_path / f"{name}.txt").write_text(f"text {name}")
    return tmp_path


class Ranks:
    """Rank 1 of three; the last is on another machine."""

    rank = 1

    def __init__(self, found):
        self.answers = [
            lambda own: [own, own, "another"],
            lambda own: [found, own, dict.fromkeys(found, "foreign")],
        ]

    def objects(self, own):
        return self.answers.pop(0)(own)


def test_the_ranks_of_a_machine_share_the_reading(folder, read):
    """Each read everything: 64 ranks a corpus of 28,000 files."""
    source = parse(f"text:{folder}/*.txt")
    expected = source.fingerprint()
    of_first = {place: found for place, found in identities._known.items() if place[0][-5] in "ace"}
    identities._known.clear()
    read.clear()
    (folder / "d.txt").unlink()
    with pytest.raises(OSError, match=r"d\.txt"):
        file_identity(folder / "d.txt")
    (folder / "d.txt").write_text("text d")
    ranks = Ranks(of_first)
    identify_together(source.fingerprint, ranks)
    assert read == ["b.txt", "d.txt"] and not ranks.answers
    assert parse(source.spec).fingerprint() == expected
    assert read == ["b.txt", "d.txt"]


def test_a_single_process_reads_all(folder, read, monkeypatch):
    source = parse(f"text:{folder}/*.txt")
    alone = type("Alone", (), {"rank": 0, "objects": lambda self, own: [own]})()
    identify_together(source.fingerprint, alone)
    assert len(read) == 5 and process_info.current().world == 1
    source.fingerprint()
    assert len(read) == 5
