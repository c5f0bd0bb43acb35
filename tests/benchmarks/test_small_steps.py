"""Steps of small models: timed for each encoding beside transformers' Llama, and stored with what was measured."""

import pytest

from benchmarks import small_steps
from benchmarks.__main__ import main
from tape_ds import results
from tape_ds.installation import ROOT


@pytest.mark.slow
def test_every_encoding_has_a_time_and_a_ratio(tmp_path):
    assert (
        main(["steps", "--toys", "--repeats", "1", "--earlier", str(ROOT), "--out", str(tmp_path)])
        == 0
    )
    stored = results.load(tmp_path / "small_steps_cpu.json")
    (versions,) = stored.figures["runs"].values()
    assert list(versions) == [small_steps.OURS, small_steps.EARLIER]
    for (found,) in versions.values():
        assert list(found) == [small_steps.PEER, *small_steps.ENCODINGS]
        assert min(found.values()) > 0
    lines = (tmp_path / "small_steps_cpu.md").read_text().splitlines()
    assert len([line for line in lines if line.startswith("| toy |")]) == 1 + 2 * len(
        small_steps.ENCODINGS
    )


def test_mistakes_are_named_before_anything_is_measured(tmp_path, capsys):
    assert (
        main(["steps", "--repeats", "0", "--earlier", str(tmp_path), "--out", str(tmp_path)]) == 2
    )
    printed = capsys.readouterr().err
    assert "--repeats = 0" in printed and "no checkout of tape-ds" in printed
    assert main(["steps", "--toys"]) == 2
    assert "toys give none" in capsys.readouterr().err
