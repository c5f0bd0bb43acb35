"""Memory and CPU time of merges: every command runs, and is stored with what it was measured with."""

import pytest
import torch
from safetensors.torch import save_file

from benchmarks import merge_cost
from benchmarks.__main__ import main
from tape_ds import results


@pytest.mark.slow
def test_every_command_is_measured(tmp_path):
    sizes = ["--layers", "1", "--width", "128", "--rows", "90", "--repeats", "1"]
    assert main(["merge", *sizes, "--out", str(tmp_path)]) == 0
    figures = results.load(tmp_path / "merge_cost_cpu.json").figures
    names = ["merge", "export", "export --gguf", "convert", "evaluate generate"]
    assert list(figures["rows"]) == names and list(figures["rows"]["merge"]) == [
        merge_cost.OURS,
        merge_cost.PEFT,
    ]
    assert (
        list(figures["four_times_the_layers"]) == ["merge", "export"] and figures["differing"] == {}
    )
    for versions in figures["rows"].values():
        assert all(
            run["seconds"] > 0 and run["bytes"] > 2**27
            for runs in versions.values()
            for run in runs
        )
    assert "| export --gguf | this version |" in (tmp_path / "merge_cost_cpu.md").read_text()


def test_numbers_that_differ_are_counted_in_units_of_the_last_place(tmp_path):
    """From the largest negative number over zero to the smallest positive one there are two steps."""
    smallest = 2.0**-133
    one = torch.tensor([[1.0, -1.0, smallest, 0.0], [2.0, 3.0, 4.0, -2.0]]).bfloat16()
    other = torch.tensor([[1.0, -1.0078125, -smallest, -0.0], [2.0, 3.0, 4.0, -2.0]]).bfloat16()
    for name, tensor in (("one", one), ("other", other)):
        (tmp_path / name).mkdir()
        save_file({"x": tensor}, tmp_path / name / "model.safetensors")
    found = merge_cost.compare(tmp_path / "one", tmp_path / "other")
    assert found == {"numbers": 8, "differing": 2, "largest": 2}


def test_mistakes_are_named_before_anything_is_made(tmp_path, capsys):
    assert (
        main(
            [
                "merge",
                "--width",
                "100",
                "--repeats",
                "0",
                "--earlier",
                str(tmp_path),
                "--out",
                str(tmp_path),
            ]
        )
        == 2
    )
    printed = capsys.readouterr().err
    assert (
        "--width = 100" in printed
        and "--repeats = 0" in printed
        and "no checkout of tape-ds" in printed
    )
