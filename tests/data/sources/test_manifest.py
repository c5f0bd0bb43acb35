"""What a prepared folder says of itself: written, read, compared, and held against the files."""

import json
from dataclasses import replace

import pytest

from tape_ds import storage
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


def test_fingerprint_follows_contents_not_place():
    entries = (ShardEntry("a.arrow", 1, 2, 1, 3, "d"),)
    known = DataManifest(SETTINGS, entries).fingerprint
    assert DataManifest(replace(SETTINGS, addresses=["text:/elsewhere"]), entries).fingerprint == known
    assert DataManifest(replace(SETTINGS, tokenizer="abd"), entries).fingerprint != known
    assert DataManifest(SETTINGS, (replace(entries[0], sha256="e"),)).fingerprint != known


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda content: content["settings"].update(tokenizer="abd"), "its check sum is wrong"),
        (lambda content: content.pop("check"), "'check'"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(folder, change, wrong):
    content = json.loads((folder / arrow.MANIFEST).read_text())
    change(content)
    (folder / arrow.MANIFEST).write_text(json.dumps(content))
    (found,) = problems(folder)
    assert found.startswith("manifest.json is damaged or of another version") and wrong in found
