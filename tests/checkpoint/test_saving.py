"""A save that a disk fails costs the save and nothing else; one in the background is committed when all is written."""

import errno
import threading

import pytest
import torch

from tape_ds import checkpoint, storage
from tape_ds.checkpoint.saving import EngineFiles, SavedPart, Saver
from tape_ds.distributed.rank_sync import RankSync


@pytest.fixture
def said():
    """What the savers of a test say."""
    return []


@pytest.fixture
def saver(tmp_path, said):
    """One for a run of one process, which keeps two checkpoints."""

    def make(background=False):
        about = {"processes": 1, "stage": None, "identity": {"seed": 1}, "versions": {}}
        keep = {"limit": 2, "every": None, "steps": ()}
        return Saver(tmp_path, RankSync(), about, keep, said.append, background)

    return make


def save(saver, step, content="weights", name=None):
    part = saver.begin(step, need=100, name=name)
    part.write("inner/a.txt", lambda path: path.write_text(content))
    part.attempt(lambda: (part.folder / "b.txt").write_text("state"))
    part.go()
    return saver.finish()


def names(output):
    return sorted(path.name for path in output.iterdir())


def test_a_save_is_committed_whole_and_old_ones_go(saver, tmp_path, said):
    mine = saver()
    for step in (1, 2, 3):
        folder = save(mine, step, name="first" if step == 1 else None)
    manifest = checkpoint.read(folder)
    assert set(manifest.files) == {"inner/a.txt", "b.txt"} and manifest.identity == {"seed": 1}
    assert checkpoint.corrupt_files(folder, manifest) == []
    save(mine, 4)
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-3", "checkpoint-4"]
    assert "checkpoint-4 committed" in "\n".join(said) and "removed checkpoint-2" in said[-1]


def full(path):
    path.write_text("half")
    raise OSError(errno.ENOSPC, "No space left on device")


def full_by_its_text(path):
    """As torch, safetensors and tokenizers tell of it."""
    raise RuntimeError(
        "[enforce fail at inline_container.cc] PytorchStreamWriter failed: file write failed"
    )


@pytest.mark.parametrize("fails", [full, full_by_its_text])
def test_a_full_disk_costs_the_save_and_leaves_the_old_checkpoint(saver, tmp_path, said, fails):
    mine = saver()
    save(mine, 1)
    part = mine.begin(2, need=100)
    part.write("a.txt", fails)
    part.write("never.txt", lambda path: path.write_text("not tried"))
    assert mine.finish() is None and mine.failed == 1
    assert names(tmp_path) == ["checkpoint-1"] and "CHECKPOINT NOT SAVED" in said[-1]
    assert save(mine, 3) is not None, "the next one is tried as usual"


def test_without_room_for_a_checkpoint_as_large_as_the_last_nothing_is_written(
    saver, tmp_path, monkeypatch
):
    mine = saver()
    save(mine, 1, content="w" * 2**20)
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 2**24 + 2**19)
    assert mine.begin(2, need=100) is None and mine.failed == 1
    assert names(tmp_path) == ["checkpoint-1"]


def test_in_the_background_training_continues_until_it_is_committed(saver, tmp_path):
    mine, goes = saver(background=True), threading.Event()
    part = mine.begin(1, need=100)
    part.write("a.txt", lambda path: (goes.wait(120), path.write_text("late")))
    part.go()
    assert mine.pending and not mine.done and checkpoint.committed(tmp_path) == []
    goes.set()
    assert mine.finish() == tmp_path / "checkpoint-1" and not mine.pending
    assert (tmp_path / "checkpoint-1" / "a.txt").read_text() == "late"


def test_a_mistake_in_the_background_is_not_lost(saver):
    mine = saver(background=True)
    part = mine.begin(1, need=100)
    part.write("a.txt", lambda path: {}["missing"])
    part.go()
    with pytest.raises(KeyError):
        mine.finish()


class OneOfTwo(RankSync):
    """Rank 0 of two ranks, of which the other sends ``theirs``."""

    def __init__(self, theirs=None):
        self.theirs = theirs
        self.sent = []

    def objects(self, own):
        self.sent.append(own)
        return [own, self.theirs]


def test_a_mistake_is_sent_to_the_other_ranks_before_it_is_raised(saver):
    """They waited for this rank's part until the watchdog ended them."""
    mine = saver(background=True)
    mine.rank_sync = OneOfTwo((None, {}, None))
    part = mine.begin(1, need=100)
    part.write("a.txt", lambda path: {}["missing"])
    part.go()
    with pytest.raises(KeyError):
        mine.finish()
    assert mine.rank_sync.sent == [(None, {}, "KeyError('missing')")]


def test_another_rank_s_mistake_ends_this_one_and_commits_nothing(saver, tmp_path):
    mine = saver()
    mine.rank_sync = OneOfTwo((None, {}, "KeyError('missing')"))
    mine.begin(1, need=100)
    with pytest.raises(
        RuntimeError,
        match=r"rank 1 could not write its part of checkpoint-1: KeyError\('missing'\)",
    ):
        mine.finish()
    assert checkpoint.committed(tmp_path) == []


def test_a_name_stays_when_its_step_is_saved_again(saver, tmp_path):
    mine = saver()
    save(mine, 1, name="first")
    save(mine, 1, content="again")
    assert checkpoint.read(tmp_path / "checkpoint-1").name == "first"


class Scale:
    """As the engine's loss scaler: an object that training changes."""

    def __init__(self):
        self.value = 8


def test_an_engine_s_state_in_the_background_is_that_of_the_save(tmp_path):
    """Its tensors, and objects such as the loss scaler, whatever training does with them since."""
    part, files = SavedPart(tmp_path, True), EngineFiles()
    state = {"step": 3, "groups": [torch.ones(2)], "shape": torch.Size([2]), "scaler": Scale()}
    files.part = part
    files.save(state, str(tmp_path / "global_step3" / "mp_rank_00_model_states.pt"))
    state["groups"][0].add_(1)
    state["scaler"].value = 4
    part.go()
    part.wait()
    (name,) = part.entries
    with torch.serialization.safe_globals([Scale]):
        found = torch.load(tmp_path / name, weights_only=True)
    assert (
        found["groups"][0].tolist() == [1.0, 1.0] and found["shape"] == (2,) and found["step"] == 3
    )
    assert found["scaler"].value == 8
