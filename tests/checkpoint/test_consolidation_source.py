"""What a tool reads is whole, or refused with what to give instead; what it writes lies where nothing else does."""

import pytest

from tape_ds.checkpoint.consolidation import check_out, verify
from tape_ds.errors import UserError
from tests.checkpoint.engine_files import example_groups, seal, write_engine


@pytest.fixture
def source(tmp_path):
    """The second of a run's two committed checkpoints."""
    for step in (3, 7):
        write_engine(tmp_path / "run" / f"checkpoint-{step}" / f"global_step{step}", example_groups(), 2, 1)
        seal(tmp_path / "run" / f"checkpoint-{step}", 2, 1, step)
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    return tmp_path / "run" / "checkpoint-7"


@pytest.mark.parametrize(
    ("given", "wrong", "remedy"),
    [
        ("run", "no manifest.json", "a checkpoint of its run: checkpoint-3, checkpoint-7"),
        ("run/checkpoint-8", "no such folder", "a checkpoint of its run: checkpoint-3, checkpoint-7"),
        ("run/metrics.jsonl", "no such folder", "a checkpoint of its run: checkpoint-3, checkpoint-7"),
        ("nowhere/at/all", "no such folder", "give a run's folder checkpoint-N"),
        ("x" * 300, "no such folder", "give a run's folder checkpoint-N"),
        ("x" * 300 + "/checkpoint-7", "no such folder", "give a run's folder checkpoint-N"),
    ],
)
def test_what_is_no_checkpoint_is_told_with_what_to_give_instead(source, tmp_path, given, wrong, remedy):
    with pytest.raises(UserError) as refusal:
        verify(tmp_path / given)
    assert wrong in str(refusal.value) and remedy in str(refusal.value)


def test_a_damaged_one_names_the_others_of_its_run(source):
    (source / "stray").write_text("")
    with pytest.raises(UserError, match=r"stray does not belong to it\n.*a checkpoint of its run: checkpoint-3$"):
        verify(source)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("run/checkpoint-7", "exists"),
        ("run/metrics.jsonl/out", "metrics.jsonl is not a folder"),
        ("run/checkpoint-7/out", "inside the checkpoint"),
        ("link/out", "inside the checkpoint"),
        ("x" * 300, "longer than a path may be"),
    ],
)
def test_a_place_that_will_not_do_is_told(source, tmp_path, given, wrong):
    (tmp_path / "link").symlink_to(source)
    (problem,) = check_out(tmp_path / given, source)
    assert problem.field == "out" and wrong in problem.wrong


@pytest.mark.parametrize("given", ["out", "run/reshaped/checkpoint-7", "new/folders/out"])
def test_a_new_folder_will_do(source, tmp_path, given):
    assert check_out(tmp_path / given, source) == []
