"""A tool reads whole checkpoints alone and writes into new folders."""

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


@pytest.mark.parametrize("given", ["run", "run/checkpoint-8", "nowhere/at/all", "x" * 300])
def test_what_is_no_checkpoint_is_refused(source, tmp_path, given):
    with pytest.raises(UserError, match=r"no manifest\.json|no such folder"):
        verify(tmp_path / given)


def test_of_a_damaged_one_the_others_of_its_run_are_offered(source):
    (source / "stray").write_text("")
    with pytest.raises(UserError, match=r"stray does not belong to it\n.*a checkpoint of its run: checkpoint-3$"):
        verify(source)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("run/checkpoint-7", "exists"),
        ("run/metrics.jsonl/out", "is not a folder"),
        ("link/out", "inside the checkpoint"),
        ("x" * 300, "longer than a path may be"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(source, tmp_path, given, wrong):
    (tmp_path / "link").symlink_to(source)
    (problem,) = check_out(tmp_path / given, source)
    assert problem.field == "out" and wrong in problem.wrong
    assert check_out(tmp_path / "run/reshaped/checkpoint-7", source) == []
