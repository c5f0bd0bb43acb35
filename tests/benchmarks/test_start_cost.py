"""Files opened before the first step: counted for each part, and stored with what they were measured with."""

import pytest

from benchmarks.__main__ import main
from tape_ds import results


@pytest.mark.slow
def test_what_is_opened_grows_with_the_number_of_files_and_ranks(tmp_path):
    sizes = ["--files", "30", "--ranks", "8", "--checkpoints", "5", "--repeats", "1"]
    assert main(["start", *sizes, "--out", str(tmp_path)]) == 0
    stored = results.load(tmp_path / "start_cost_cpu.json")
    (found,) = stored.figures["runs"]["this version"]
    assert found["sources"]["opened"] == 30, "once each, though three times asked for"
    assert found["ranks"]["opened"] == 16, "its own and the first, by each rank"
    assert found["checkpoints"]["opened"] <= 5 + 6, "one each, and a few of the run's own"
    assert (
        "| a folder of 5 checkpoints | this version |"
        in (tmp_path / "start_cost_cpu.md").read_text()
    )


def test_mistakes_are_named_before_anything_is_made(tmp_path, capsys):
    assert main(["start", "--files", "0", "--earlier", str(tmp_path), "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert "--files = 0" in printed and "no checkout of tape-ds" in printed
