"""Identities of source files: read once, and never out of date."""

import os

import pytest

from tape_ds import storage
from tape_ds.data.sources import file_identity as identities
from tape_ds.data.sources import parse
from tape_ds.data.sources.file_identity import file_identity


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


def test_a_file_is_read_once_and_again_when_it_changed(folder, read):
    """It was read at the start, for the tokens' cache, for the report and at a resume."""
    source = f"text:{folder}/*.txt"
    first = parse(source).fingerprint()
    assert parse(source).fingerprint() == first
    assert read == ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"]
    (folder / "b.txt").write_text("text x")
    os.utime(folder / "b.txt", ns=(5, 5))
    assert parse(source).fingerprint() != first
    assert read[5:] == ["b.txt"]


def test_a_file_that_has_just_changed_is_not_remembered(folder, read, monkeypatch):
    """Twice within a tick of the disk's clock a file has the same times, and may have the same size."""
    monkeypatch.setattr(identities, "SETTLED", 10**18)
    before = file_identity(folder / "a.txt")
    (folder / "a.txt").write_text("text z")
    assert file_identity(folder / "a.txt") != before and read == ["a.txt", "a.txt"]
