"""Folders built once: names, builds that fail, other machines, and processes that ask at the same time."""

import multiprocessing
import os

import pytest

from tape_ds import building, storage
from tape_ds.data.pack import pack
from tape_ds.errors import DiskError, UserError
from tests.data.conftest import tokenize
from tests.disks import make_read_only, mounted


def write(text):

    def build(folder):
        folder.mkdir()
        (folder / "file").write_text(text)

    return build


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_failed_build_leaves_nothing_and_can_be_tried_again(tmp_path):
    def fail(folder):
        folder.mkdir()
        raise KeyError("as it is")

    with pytest.raises(KeyError, match="as it is"):
        building.folder(tmp_path, "a", fail)
    assert names(tmp_path) == []
    assert (building.folder(tmp_path, "a", write("x")) / "file").read_text() == "x"


def test_left_over_of_a_killed_build_is_removed(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", lambda done, finished: os._exit(9))
        child = multiprocessing.get_context("fork").Process(
            target=building.folder, args=(tmp_path, "a", write("x"))
        )
        child.start()
        child.join(timeout=60)
    assert child.exitcode == 9
    (aside,) = names(tmp_path)
    assert aside.startswith("a.building-")
    (tmp_path / "a.building-elsewhere-1").mkdir()
    building.folder(tmp_path, "a", write("x"))
    assert names(tmp_path) == ["a", "a.building-elsewhere-1"], (
        "another machine may be at work in its own"
    )


def test_a_faster_machine_is_no_error(tmp_path):
    def build(folder):
        for each in (folder, tmp_path / "finished"):  # another machine is done meanwhile
            write(each.name)(each)

    assert (building.folder(tmp_path, "finished", build) / "file").read_text() == "finished"
    assert names(tmp_path) == ["finished"]


def test_two_builds_of_a_folder_that_somebody_named_do_not_meet(tmp_path):
    out = tmp_path / "out"

    def build(folder):
        write("first")(folder)
        with pytest.raises(UserError, match="another process is writing it"):
            building.build_aside(out, write("second"), "out")

    building.build_aside(out, build, "out")
    assert (out / "file").read_text() == "first"
    with pytest.raises(UserError, match="another process wrote it meanwhile"):
        building.build_aside(out, write("third"), "out")
    assert (out / "file").read_text() == "first" and [path.name for path in tmp_path.iterdir()] == [
        "out"
    ]


def _ask(folder, text, barrier, built):
    def build(aside):
        built.put(text)
        write(text)(aside)

    barrier.wait()
    building.folder(folder, "a", build)


def test_of_several_processes_one_builds(tmp_path):
    context = multiprocessing.get_context("fork")
    built, barrier = context.Queue(), context.Barrier(3)
    askers = [
        context.Process(target=_ask, args=(tmp_path, str(n), barrier, built)) for n in range(3)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(timeout=60)
        assert asker.exitcode == 0
    assert (tmp_path / "a" / "file").read_text() == built.get(timeout=10)
    assert built.empty()


def test_what_is_built_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        storage, "sync", lambda path: synced.append((path.name, (tmp_path / "a").exists()))
    )
    building.folder(tmp_path, "a", write("x"))
    assert synced == [("file", False), ("done", False), (tmp_path.name, True)]


def tokenise_onto(disk, texts, tokenizer):
    (texts / "a.txt").write_text("for letter in text:\n    pass\n" * 20_000)
    return tokenize([f"text:{texts}/*.txt"], tokenizer, "train", disk / "cache")


def test_tokenising_onto_a_disk_that_is_too_small(tmp_path, tokenizer):
    with mounted(tmp_path / "disk") as disk:
        with pytest.raises(DiskError, match=f"the disk of {disk}/cache is full"):
            tokenise_onto(disk, tmp_path, tokenizer)
        assert names(disk / "cache") == []


def test_a_finished_folder_is_read_from_a_cache_that_takes_nothing(tmp_path, tokenizer):
    with mounted(tmp_path / "disk", "64m") as disk:
        made = tokenise_onto(disk, tmp_path, tokenizer)
        make_read_only(disk)
        again = tokenise_onto(disk, tmp_path, tokenizer)
        assert again[0] == made[0]
        with pytest.raises(
            DiskError, match=r"data_cache = .*cannot be written .Read-only file system"
        ):
            pack(again, 64, disk / "cache")
        del made, again
