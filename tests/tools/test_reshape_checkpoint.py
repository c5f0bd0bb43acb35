"""The command: where the new checkpoint lies, and what a person types next."""

import pytest

from tape_ds import checkpoint
from tests.checkpoint.engine_files import example_groups, seal, write_engine
from tools import reshape_checkpoint


@pytest.fixture
def source(tmp_path):
    """A committed checkpoint of two ranks at stage 2."""
    write_engine(tmp_path / "run" / "checkpoint-7" / "global_step7", example_groups(), 2, 2)
    return seal(tmp_path / "run" / "checkpoint-7", 2, 2)


@pytest.mark.parametrize("output", [None, "elsewhere"])
def test_it_says_how_to_go_on(source, tmp_path, capsys, output):
    where = tmp_path / "run" / "reshaped" if output is None else tmp_path / output
    arguments = [] if output is None else ["--output", str(where)]
    assert reshape_checkpoint.main([str(source), "--processes", "3", "--stage", "3", *arguments]) == 0
    made = where / "checkpoint-7"
    assert (checkpoint.read(made).processes, checkpoint.read(made).stage) == (3, 3)
    said = capsys.readouterr().out
    assert f"--resume_from_checkpoint {made}" in said and "for 3 processes at ZeRO stage 3" in said


def test_a_wish_is_needed(source, capsys):
    assert reshape_checkpoint.main([str(source)]) == 2
    assert "give --processes, --stage or both" in capsys.readouterr().err


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path, capsys):
    assert reshape_checkpoint.main([str(tmp_path), "--stage", "1"]) == 2
    assert "no manifest.json" in capsys.readouterr().err


def test_it_does_not_write_into_the_checkpoint(source, capsys):
    assert reshape_checkpoint.main([str(source), "--processes", "1", "--output", str(source)]) == 2
    assert "lies in the checkpoint" in capsys.readouterr().err
    assert not (source / "checkpoint-7").exists()
