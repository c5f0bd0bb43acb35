"""Files are whole or absent, whatever stops the writing; refusals of a disk are recognised."""

import errno
import multiprocessing
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from tape_ds import storage
from tape_ds.checkpoint import saving
from tests.disks import files, mounted, small_files

FULL = OSError(errno.ENOSPC, "No space left on device")

SIZE = 65 * 2**20


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def fails_in_writing(path):
    path.write_text("ne")
    raise FULL


@pytest.mark.parametrize("where", ["write", "sync", "rename"])
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch, where):
    def refuse(*arguments):
        raise FULL

    storage.write_text(tmp_path / "file", "old")
    write = fails_in_writing if where == "write" else lambda path: path.write_text("new")
    if where != "write":
        monkeypatch.setattr(os, {"sync": "fsync", "rename": "replace"}[where], refuse)
    with pytest.raises(OSError, match="No space left"):
        storage.write_file(tmp_path / "file", write)
    assert (tmp_path / "file").read_text() == "old"
    assert files(tmp_path) == ["file"]


def test_a_process_that_is_killed_in_the_middle_leaves_the_old_file(tmp_path):
    def killed(path):
        path.write_text("ne")
        os._exit(9)

    storage.write_text(tmp_path / "file", "old")
    child = multiprocessing.get_context("fork").Process(
        target=storage.write_file, args=(tmp_path / "file", killed)
    )
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 9
    assert (tmp_path / "file").read_text() == "old"


def test_contents_reach_the_disk_before_the_name_and_the_name_after_it(tmp_path, monkeypatch):
    done, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda file: (done.append(os.readlink(f"/proc/self/fd/{file}")), sync(file))
    )
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("renamed"), replace(*paths)))
    storage.write_text(tmp_path / "file", "new")
    aside, renamed, folder = done
    assert aside.endswith(".writing") and renamed == "renamed" and folder == str(tmp_path)


def test_a_new_file_has_the_usual_permissions_and_an_old_one_keeps_its_own(tmp_path):
    """safetensors makes files that only their owner can read."""

    def write(path):
        save_file({"x": torch.zeros(1)}, path)

    before = os.umask(0o027)
    try:
        storage.write_file(tmp_path / "file", write)
    finally:
        os.umask(before)
    assert mode(tmp_path / "file") == 0o640
    (tmp_path / "file").chmod(0o604)
    storage.write_file(tmp_path / "file", write)
    assert mode(tmp_path / "file") == 0o604


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(bytes(2**20)),
        lambda path: save_file({"x": torch.zeros(2**18)}, path),
        lambda path: torch.save(torch.zeros(2**18), path),
    ],
    ids=["python", "safetensors", "torch"],
)
def test_a_full_disk_keeps_the_old_file_and_is_recognised(tmp_path, write):
    with mounted(tmp_path / "disk") as disk:
        storage.write_text(disk / "file", "old")
        with pytest.raises(Exception) as caught:  # each library raises its own
            storage.write_file(disk / "file", write)
        refused = storage.refusal(caught.value)
        assert refused is not None and "free" in storage.explain(refused, disk)
        assert (disk / "file").read_text() == "old"
        assert files(disk) == ["file"]


def tokenizer_of(words):
    return Tokenizer(
        models.WordLevel({f"word {number}": number for number in range(words)}, unk_token="word 0")
    )


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(bytes(2**20)),
        lambda path: save_file({"x": torch.zeros(2**18)}, path),
        lambda path: tokenizer_of(10_000).save(str(path)),
        lambda path: saving.save_pickle(torch.zeros(2**18), path),
    ],
    ids=["python", "safetensors", "tokenizers", "torch"],
)
def test_a_limit_on_a_file_s_size_is_recognised_and_named(tmp_path, write):
    """It ended a training run in its save, with a traceback."""
    storage.write_text(tmp_path / "file", "old")
    with small_files(64 * 2**10):
        with pytest.raises(Exception) as caught:  # each library raises its own
            storage.write_file(tmp_path / "file", write)
        refused = storage.refusal(caught.value)
        assert refused is not None and refused.errno == errno.EFBIG
        assert "this process may write files of 64.00 KiB at most (ulimit -f)" in storage.explain(
            refused, tmp_path
        )
    assert "file system does not allow" in storage.explain(refused, tmp_path)
    assert (tmp_path / "file").read_text() == "old" and files(tmp_path) == ["file"]


def wrapped(cause):
    error = RuntimeError("the library's own words")
    error.__cause__ = cause
    return error


CIRCLE = ValueError("one")
CIRCLE.__context__ = wrapped(CIRCLE)


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (FULL, errno.ENOSPC),
        (OSError(errno.EROFS, "x"), errno.EROFS),
        (wrapped(wrapped(FULL)), errno.ENOSPC),
        (RuntimeError("I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (wrapped(ValueError("basic_ios::clear: iostream error")), errno.EIO),
        (PermissionError(errno.EACCES, "Permission denied", __file__), errno.EACCES),
        (OSError(errno.ENOENT, "x"), None),
        (CIRCLE, None),
    ],
)
def test_the_disk_s_refusal_that_caused_an_error(error, number):
    found = storage.refusal(error)
    assert (found and found.errno) == number


@pytest.mark.parametrize("place", [0, (SIZE - storage.BLOCK_BYTES) * 3 // 7, SIZE - 1])
def test_a_large_file_is_told_from_another_at_both_ends_and_between(tmp_path, place):
    """A hole of 65 MiB with one byte that differs, in a block that is read."""
    one, copy, other = (tmp_path / name for name in "abc")
    for path in (one, copy, other):
        with path.open("wb") as file:
            file.truncate(SIZE)
    os.utime(copy, ns=(1, 1))
    with other.open("r+b") as file:
        file.seek(place)
        file.write(b"x")
    assert (
        storage.content_identity(copy)
        == storage.content_identity(one)
        != storage.content_identity(other)
    )


def test_the_cache_is_where_caches_are_asked_to_be(monkeypatch):
    asked = [
        ("", "", "~/.cache/tape_ds"),
        ("/x", "", "/x/tape_ds"),
        ("/x", "~/scratch", "~/scratch/tape_ds"),
    ]
    for hub, caches, expected in asked:
        monkeypatch.setenv("HF_HOME", hub)
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
        assert storage.cache_home() == Path(expected).expanduser()


@pytest.mark.parametrize(
    "count, shown", [(1023, "1023 bytes"), (1536, "1.50 KiB"), (2**41, "2.00 TiB")]
)
def test_sizes_are_for_people(count, shown):
    assert storage.size(count) == shown
