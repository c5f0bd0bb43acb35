"""Folders built once: names, builds that fail, other machines, and processes that ask at the same time."""

import multiprocessing
import os

import pytest

from tape_ds.data import cache


def write(text):
    """A build that fills one file."""

    def build(folder):
        folder.mkdir()
        (folder / "file").write_text(text)

    return build


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_name_follows_kind_and_parts_not_their_order():
    name = cache.key("rows", length=4, source="abc")
    assert name == cache.key("rows", source="abc", length=4)
    assert name.startswith("rows-")
    assert len({name, cache.key("rows", length=5, source="abc"), cache.key("documents", length=4, source="abc")}) == 3


def test_built_once(tmp_path):
    first = cache.folder(tmp_path / "new" / "cache", "a", write("first"))
    assert first == tmp_path / "new" / "cache" / "a"
    assert cache.folder(first.parent, "a", write("second")) == first
    assert (first / "file").read_text() == "first"
    assert names(first.parent) == ["a"]


def test_failed_build_leaves_nothing_and_can_be_tried_again(tmp_path):
    def fail(folder):
        folder.mkdir()
        raise KeyError("as it is")

    with pytest.raises(KeyError, match="as it is"):
        cache.folder(tmp_path, "a", fail)
    assert names(tmp_path) == []
    assert (cache.folder(tmp_path, "a", write("x")) / "file").read_text() == "x"


def test_left_over_of_a_killed_build_is_removed(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(cache, "_rename", lambda done, finished: os._exit(9))
        child = multiprocessing.get_context("fork").Process(target=cache.folder, args=(tmp_path, "a", write("x")))
        child.start()
        child.join(timeout=60)
    assert child.exitcode == 9
    (aside,) = names(tmp_path)
    assert aside.startswith("a.building-")
    (tmp_path / "a.building-elsewhere-1").mkdir()
    cache.folder(tmp_path, "a", write("x"))
    assert names(tmp_path) == ["a", "a.building-elsewhere-1"], "another machine may be at work in its own"


def test_a_faster_machine_is_no_error(tmp_path):
    for name in ("done", "finished"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text(name)
    cache._rename(tmp_path / "done", tmp_path / "finished")
    assert (tmp_path / "finished" / "state.json").read_text() == "finished"
    with pytest.raises(FileNotFoundError):
        cache._rename(tmp_path / "absent", tmp_path / "new")


def _ask(folder, text, barrier, built):
    def build(aside):
        built.put(text)
        write(text)(aside)

    barrier.wait()
    cache.folder(folder, "a", build)


def test_of_several_processes_one_builds(tmp_path):
    context = multiprocessing.get_context("fork")
    built, barrier = context.Queue(), context.Barrier(3)
    askers = [context.Process(target=_ask, args=(tmp_path, str(n), barrier, built)) for n in range(3)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(timeout=60)
        assert asker.exitcode == 0
    assert (tmp_path / "a" / "file").read_text() == built.get(timeout=10)
    assert built.empty()
