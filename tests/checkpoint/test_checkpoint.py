"""A folder is a checkpoint or is none, whenever its save, its replacement or its removal was cut short."""

import errno
import json
import os
import shutil

import pytest

from tape_ds import checkpoint
from tape_ds.checkpoint import Manifest, format


def sealed(output, step, name=None, content="weights"):
    """A committed checkpoint of two files."""
    aside = output / f"checkpoint-{step}.writing"
    (aside / "inner").mkdir(parents=True)
    (aside / "a.txt").write_text(content)
    (aside / "inner" / "b.txt").write_text("state")
    files = {each: checkpoint.entry(aside / each) for each in ("a.txt", "inner/b.txt")}
    manifest = Manifest(
        step=step, processes=2, stage=1, files=files, identity={"seed": 1}, name=name
    )
    checkpoint.commit(aside, output / f"checkpoint-{step}", manifest)
    return output / f"checkpoint-{step}"


def names(output):
    return sorted(path.name for path in output.iterdir())


def test_what_is_committed_is_read_back(tmp_path):
    folder = sealed(tmp_path, 3, name="before")
    manifest = checkpoint.read(folder)
    assert (manifest.step, manifest.processes, manifest.stage, manifest.name) == (3, 2, 1, "before")
    assert manifest.size == len("weights") + len("state") and manifest.identity == {"seed": 1}
    assert (
        checkpoint.missing_files(folder, manifest)
        == checkpoint.corrupt_files(folder, manifest)
        == []
    )
    assert names(tmp_path) == ["checkpoint-3"]


def truncate(folder):
    (folder / "a.txt").write_text("weight")


def flip(folder):
    (folder / "a.txt").write_text("weighty"[:6] + "S")


def delete(folder):
    (folder / "inner" / "b.txt").unlink()


def add(folder):
    (folder / "inner" / "foreign.pt").touch()


def link(folder):
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to(folder / "inner" / "b.txt")


@pytest.mark.parametrize("harm", [truncate, flip, delete, add, link])
def test_damage_is_found(tmp_path, harm):
    """By the sizes of files, and where those are right by their content."""
    folder = sealed(tmp_path, 3)
    manifest = checkpoint.read(folder)
    harm(folder)
    find = checkpoint.corrupt_files if harm is flip else checkpoint.missing_files
    assert len(find(folder, manifest)) == 1


def outside(content):
    content = {**content, "files": {"../../x": content["files"]["a.txt"]}}
    del content["check"]
    return content | {"check": format._hash(content)}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda content: content | {"step": 4}, "check sum is another"),
        (lambda _: 3, "damaged"),
        (outside, "outside"),
    ],
)
def test_a_manifest_that_was_changed_is_none(tmp_path, change, wrong):
    file = sealed(tmp_path, 3) / checkpoint.MANIFEST
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(ValueError, match=wrong):
        checkpoint.read(file.parent)


def test_a_manifest_of_another_step_is_none(tmp_path):
    """It was resumed, at a step that its folder does not name."""
    sealed(tmp_path, 3)
    (tmp_path / "checkpoint-3").rename(tmp_path / "checkpoint-2")
    with pytest.raises(
        ValueError, match=r"its manifest\.json is of step 3: it belongs to another checkpoint"
    ):
        checkpoint.read(tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-2").rename(tmp_path / "best")
    assert checkpoint.read(tmp_path / "best").step == 3, "a name of a person's"


def test_an_incomplete_folder_is_not_committed(tmp_path):
    aside = tmp_path / "checkpoint-3.writing"
    aside.mkdir()
    files = {"a.txt": checkpoint.Entry(3, "0")}
    with pytest.raises(ValueError, match=r"a\.txt is missing"):
        manifest = Manifest(step=3, processes=1, stage=None, files=files, identity={})
        checkpoint.commit(aside, tmp_path / "checkpoint-3", manifest)
    assert checkpoint.committed(tmp_path) == []


def test_newest_last_by_number(tmp_path):
    for step in (8, 16, 100):
        sealed(tmp_path, step)
    (tmp_path / "checkpoint-old").mkdir()
    (tmp_path / "checkpoint-120").mkdir()  # without a manifest
    assert [folder.name for folder in checkpoint.committed(tmp_path)] == [
        *("checkpoint-8", "checkpoint-16", "checkpoint-100"),
    ]


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_checkpoint_that_was_to_be_replaced_survives_a_kill_in_between(
    tmp_path, monkeypatch, killed_at
):
    """At either of the two renames: the old one or the new one is there, and whole."""
    sealed(tmp_path, 3, content="old one")
    calls, rename = [], os.rename

    def dies(source, target):
        calls.append(source)
        if len(calls) == killed_at:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", dies)
    with pytest.raises(KeyboardInterrupt):
        sealed(tmp_path, 3, content="new one")
    monkeypatch.undo()
    checkpoint.tidy(tmp_path)
    (folder,) = checkpoint.committed(tmp_path)
    manifest = checkpoint.read(folder)
    assert (
        checkpoint.missing_files(folder, manifest)
        == checkpoint.corrupt_files(folder, manifest)
        == []
    )
    assert (folder / "a.txt").read_text() == "old one" and names(tmp_path) == ["checkpoint-3"]


def test_tidy_removes_what_was_not_finished(tmp_path):
    sealed(tmp_path, 3)
    (tmp_path / "checkpoint-6.writing").mkdir()
    shutil.copytree(tmp_path / "checkpoint-3", tmp_path / "checkpoint-2.removed")
    assert len(checkpoint.tidy(tmp_path)) == 1
    assert names(tmp_path) == ["checkpoint-3"] and checkpoint.tidy(tmp_path) == []


def test_tidy_knows_its_own_names_alone(tmp_path):
    """A person's folder ``checkpoint-notes.removed`` was deleted at every start."""
    mine = [
        "checkpoint-notes.removed",
        "checkpoint-.writing",
        "checkpoint-3.removed.old",
        "notes.writing",
    ]
    for name in [*mine, "checkpoint-2.removed", "trained.writing"]:
        (tmp_path / name).mkdir()
    checkpoint.tidy(tmp_path)
    assert names(tmp_path) == sorted(mine)


def test_trained_weights_that_were_not_replaced_come_back(tmp_path):
    (tmp_path / "trained.replaced").mkdir()
    (tmp_path / "trained.replaced" / "notes.txt").write_text("mine")
    assert checkpoint.tidy(tmp_path) == [
        "trained restored: what was to replace it was not finished"
    ]
    assert (tmp_path / "trained" / "notes.txt").read_text() == "mine"


def test_a_person_s_file_in_a_checkpoint_is_not_removed_with_it(tmp_path):
    """Neither by the limit nor where a checkpoint of the same step takes its place."""
    for step in (2, 4, 6):
        sealed(tmp_path, step)
    for step in (2, 6):
        (tmp_path / f"checkpoint-{step}" / "notes.txt").write_text("mine")
    assert [folder.name for folder in checkpoint.retain(tmp_path, 1)] == ["checkpoint-4"]
    sealed(tmp_path, 6, content="new one")
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-6", "checkpoint-6.abandoned"]
    assert (tmp_path / "checkpoint-6" / "a.txt").read_text() == "new one"
    assert (tmp_path / "checkpoint-6.abandoned" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({"limit": None}, [2, 4, 6, 8, 10]),
        ({"limit": 2}, [6, 8, 10]),
        ({"limit": 1, "every": 8, "steps": [2, 3]}, [2, 6, 8, 10]),
    ],
)
def test_what_is_kept(tmp_path, rules, kept):
    """The newest, by rule, and the one with a name (6)."""
    for step in (2, 4, 6, 8, 10):
        sealed(tmp_path, step, name="mine" if step == 6 else None)
    gone = checkpoint.retain(tmp_path, **rules)
    assert [checkpoint.step_of(folder) for folder in checkpoint.committed(tmp_path)] == kept
    assert sorted([checkpoint.step_of(folder) for folder in gone] + kept) == [2, 4, 6, 8, 10]


def test_a_checkpoint_that_cannot_be_replaced_is_put_back_at_once(tmp_path, monkeypatch):
    sealed(tmp_path, 3, content="old one")
    rename = os.rename

    def fails(source, target):
        if source.name.endswith(checkpoint.WRITING):
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="Input/output"):
        sealed(tmp_path, 3, content="new one")
    assert (tmp_path / "checkpoint-3" / "a.txt").read_text() == "old one"


def test_later_checkpoints_are_moved_and_none_is_lost(tmp_path):
    """Twice, as after going back twice; named ones as well, and never the one that training continues from."""
    for _ in range(2):
        for step in (2, 4, 6):
            if not (tmp_path / f"checkpoint-{step}").exists():
                sealed(tmp_path, step, name="mine" if step == 6 else None)
        checkpoint.abandon(tmp_path, tmp_path / "checkpoint-4", 3)
    assert names(tmp_path) == [
        *("checkpoint-2", "checkpoint-4", "checkpoint-6.abandoned", "checkpoint-6.abandoned-2"),
    ]


def test_of_a_link_only_the_link_is_removed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    sealed(tmp_path / "elsewhere", 2)
    (tmp_path / "checkpoint-2").symlink_to(tmp_path / "elsewhere" / "checkpoint-2")
    sealed(tmp_path, 4)
    checkpoint.retain(tmp_path, 1)
    assert names(tmp_path) == ["checkpoint-4", "elsewhere"] and names(tmp_path / "elsewhere") == [
        "checkpoint-2"
    ]
