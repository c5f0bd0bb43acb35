"""What a prepared folder says of itself: written, read, compared, and held against the files."""

import json
from dataclasses import replace

import pytest

from tape_ds import storage
from tape_ds.data.prepared import verify
from tape_ds.data.sources import arrow
from tape_ds.data.sources.arrow import DataManifest, Settings, ShardEntry

SETTINGS = Settings("train", "abc", "some/name", ["stdlib"], "def", shard_tokens=100, parts=4)


@pytest.fixture
def folder(tmp_path):
    """A finished folder of two shards, of three and five bytes."""
    entries = []
    for number, content in enumerate([b"one", b"three"]):
        path = tmp_path / f"0000{number}-00000.arrow"
        path.write_bytes(content)
        entries.append(ShardEntry(path.name, 1, 10 + number, 1, len(content), storage.digest(path)))
    DataManifest(SETTINGS, tuple(entries)).write(tmp_path)
    return tmp_path


def problems(folder):
    return [problem.wrong for problem in arrow.check_manifest(folder, "train_data", "arrow:x")]


def edit(path, change):
    """Rewrite a JSON file after ``change`` of its content."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_written_and_read(folder):
    found = arrow.read_manifest(folder)
    assert found.settings == SETTINGS
    assert [entry.tokens for entry in found.shards] == [10, 11]
    assert (found.documents, found.tokens) == (2, 21)
    assert problems(folder) == []
    assert not list(folder.glob("*.writing"))


def test_fingerprint_follows_contents_not_place():
    entries = (ShardEntry("a.arrow", 1, 2, 1, 3, "d"),)
    known = DataManifest(SETTINGS, entries).fingerprint
    assert DataManifest(replace(SETTINGS, addresses=["text:/elsewhere"]), entries).fingerprint == known
    assert DataManifest(replace(SETTINGS, tokenizer="abd"), entries).fingerprint != known
    assert DataManifest(SETTINGS, (replace(entries[0], sha256="e"),)).fingerprint != known


def test_missing_and_short_shards_are_named_at_once(folder):
    (folder / "00000-00000.arrow").unlink()
    (folder / "00001-00000.arrow").write_bytes(b"thre")
    assert problems(folder) == [
        "shard 00000-00000.arrow is missing",
        "shard 00001-00000.arrow has 4 bytes instead of 5",
    ]


def test_a_flipped_bit_is_seen_by_the_hash_alone(folder):
    assert verify(folder) == []
    (folder / "00001-00000.arrow").write_bytes(b"thrfe")
    assert problems(folder) == []
    (problem,) = verify(folder)
    assert problem.wrong == "shard 00001-00000.arrow is damaged: its SHA-256 is another"
    (folder / "00001-00000.arrow").unlink()
    assert [problem.wrong for problem in verify(folder)] == ["shard 00001-00000.arrow is missing"]


def test_unfinished_is_told_from_other_folders(folder, tmp_path_factory):
    (folder / arrow.MANIFEST).unlink()
    assert not arrow.is_prepared(folder)
    (folder / arrow.RECORDS).mkdir()
    assert arrow.is_prepared(folder)
    (found,) = arrow.check_manifest(folder, "train_data", "arrow:x")
    assert "not finished" in found.wrong
    assert "resumes" in found.remedy
    assert (found.field, found.value) == ("train_data", "arrow:x")


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda content: content["shards"][0].update(tokens=12), "its check sum is wrong"),
        (lambda content: content["settings"].update(tokenizer="abd"), "its check sum is wrong"),
        (lambda content: content.pop("check"), "'check'"),
    ],
)
def test_damaged_manifest_is_refused(folder, change, wrong):
    edit(folder / arrow.MANIFEST, change)
    (found,) = problems(folder)
    assert found.startswith("manifest.json is damaged or of another version")
    assert wrong in found
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        arrow.read_manifest(folder)


def test_manifest_that_is_no_manifest(folder):
    for content in ("{", "[]", "3"):
        (folder / arrow.MANIFEST).write_text(content)
        assert len(problems(folder)) == 1


def test_manifest_of_another_version(folder, monkeypatch):
    monkeypatch.setattr(arrow, "FORMAT", 3)
    assert "its format is 2, this program reads 3" in problems(folder)[0]
