"""A run resumes from the newest whole checkpoint, or is refused before it starts."""

import contextlib
import errno

import pytest

from tape_ds import checkpoint
from tape_ds.checkpoint import Manifest, load
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import UserError
from tests.checkpoint.test_checkpoint import delete, flip, sealed


def choose(given, output):
    return load.choose(given, output, RankSync())


def test_a_fresh_start(tmp_path):
    """Where nothing was asked for, and by "auto" where there is nothing."""
    assert choose("auto", tmp_path) is None
    sealed(tmp_path, 3)
    assert choose(None, tmp_path) is None


@pytest.mark.parametrize("given", [True, "auto"])
def test_the_newest_whole_one_is_found_and_others_named(tmp_path, given):
    """By number, not by name; damaged ones are passed over, each with its reason."""
    for step in (8, 16, 24, 100):
        sealed(tmp_path, step)
    flip(tmp_path / "checkpoint-24")
    (tmp_path / "checkpoint-100" / "manifest.json").unlink()
    found = choose(given, tmp_path)
    assert found.folder == tmp_path / "checkpoint-16" and found.manifest.step == 16
    assert [each.partition(":")[0] for each in found.passed_over] == [
        "checkpoint-100",
        "checkpoint-24",
    ]
    assert "a.txt is damaged" in "\n".join(load.describe(found, []))


def test_a_folder_that_is_named_must_be_whole_and_another_is_offered(tmp_path):
    for step in (8, 16, 24):
        sealed(tmp_path, step)
    flip(tmp_path / "checkpoint-16")
    delete(tmp_path / "checkpoint-24")
    with pytest.raises(UserError) as caught:
        choose(str(tmp_path / "checkpoint-24"), tmp_path)
    (problem,) = caught.value.problems
    assert (
        problem.field == "resume_from_checkpoint"
        and str(tmp_path / "checkpoint-8") in problem.remedy
    )


@pytest.mark.parametrize(
    ("harm", "given", "said"),
    [
        (None, True, "holds no committed checkpoint"),
        (flip, "auto", "none of its checkpoints is whole"),
    ],
)
def test_where_nothing_can_be_resumed(tmp_path, harm, given, said):
    """Damaged checkpoints alone are no reason to start anew over them."""
    if harm is not None:
        harm(sealed(tmp_path, 3))
    with pytest.raises(UserError, match=said):
        choose(given, tmp_path)


@pytest.mark.parametrize(
    ("saved", "job", "said"),
    [
        ((1, 1), (3, 1), None),
        ((0, 1), (3, 1), "saved at ZeRO stage 0, and this job's is 3"),
        ((2, 1), (0, 1), "saved at ZeRO stage 2, and this job's is 0"),
        ((None, 1), (3, 1), "saved without an engine"),
        ((3, 1), (None, 1), "saved with DeepSpeed"),
        ((2, 2), (2, 1), "saved with tensor_parallel_size 2, and this job's is 1"),
    ],
)
def test_shards_fit_every_stage_and_other_jobs_are_refused(tmp_path, saved, job, said):
    manifest = Manifest(step=3, processes=2, stage=saved[0], tensor=saved[1], files={}, identity={})
    with contextlib.nullcontext() if said is None else pytest.raises(UserError, match=said):
        load.require_fitting(load.Resumed(tmp_path, manifest), *job)


def test_a_checkpoint_that_cannot_be_read_is_passed_over(tmp_path, monkeypatch):
    """An error on one rank alone would make the others wait."""
    for step in (8, 16):
        sealed(tmp_path, step)
    missing_files = checkpoint.missing_files

    def stale(folder, manifest):
        if folder.name == "checkpoint-16":
            raise OSError(errno.ESTALE, "Stale file handle")
        return missing_files(folder, manifest)

    monkeypatch.setattr(checkpoint, "missing_files", stale)
    found = choose("auto", tmp_path)
    assert found.folder.name == "checkpoint-8"
    assert found.passed_over == ["checkpoint-16: it cannot be read (Stale file handle)"]
