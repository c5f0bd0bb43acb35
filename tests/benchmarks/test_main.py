"""The command: what it writes, what it lists, and what it answers to mistakes."""

import pytest

from benchmarks import table
from benchmarks.__main__ import main
from benchmarks.benchmark_case import BenchmarkCase, CaseEntry
from benchmarks.groups import GROUPS

TOY = ["--device", "cpu", "--toys"]


def test_a_group_is_run_and_stored(tmp_path, capsys):
    assert main(["rotate", "decode", *TOY, "--only", "eager|plain", "--repeats", "2", "--out", str(tmp_path)]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["decode_cpu.jsonl", "decode_cpu.md", "rotate_cpu.jsonl", "rotate_cpu.md"]
    rows = table.read(tmp_path / "rotate_cpu.jsonl")
    assert {row.shape for row in rows} == set(GROUPS["rotate"].toys[1])
    assert {(row.implementation, row.repeats, row.dtype) for row in rows} == {("eager", 2, "float32")}
    shown = capsys.readouterr()
    assert "python -m benchmarks rotate --device cpu --dtype float32" in shown.out
    assert "rope: eager: timed" in shown.err


def test_rows_of_every_group_go_to_one_file_that_holds_others(tmp_path):
    path = tmp_path / "campaign_1.jsonl"
    table.append({"stage": "machine"}, path)
    assert main(["rotate", "decode", *TOY, "--only", "eager|plain", "--out", str(path)]) == 0
    assert {row.group for row in table.read(path)} == {"rotate", "decode"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_wrong_rival_of_ours_fails_the_command(tmp_path, monkeypatch, capsys):
    whole = GROUPS["rotate"].case

    def broken(shape, setting):
        asked = whole(shape, setting)
        entry = next(entry for entry in asked.entries if entry.implementation == "ours")

        def build():
            runner = entry.build()
            return runner._replace(outcome=lambda: {name: 2 * x for name, x in runner.outcome().items()})

        return BenchmarkCase([CaseEntry("ours", entry.encoding, build)], asked.truth)

    monkeypatch.setitem(GROUPS, "rotate", GROUPS["rotate"]._replace(case=broken))
    assert main(["rotate", *TOY, "--out", str(tmp_path)]) == 1
    assert "WRONG: rotate" in capsys.readouterr().err
    (row,) = table.read(tmp_path / "rotate_cpu.jsonl")
    assert (row.status, row.total_p50) == ("wrong", None)


def test_the_list_names_groups_shapes_and_rivals_and_runs_nothing(tmp_path, capsys):
    assert main(["--list", *TOY, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for name, group in GROUPS.items():
        assert f"{name}: " in shown
        assert f"  shape {group.toys[1][0]}" in shown
    assert "  implementation tape: attend auto" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["atention"], ["groups", "did you mean 'attention'"]),
        (["encodings", "--dtype", "float8", "--repeats", "0"], ["dtype", "did you mean 'float", "repeats"]),
        (["encodings", "--device", "gpu"], ["device = 'gpu'", "did you mean 'cpu'"]),
        (["encodings", "--device", "cpu", "--shapes", "T999"], ["shapes", "T999", "--list"]),
        (["recipe", "--device", "cpu"], ["no shape of these groups on cpu"]),
    ],
)
def test_mistakes_are_named(arguments, words, capsys):
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words)


@pytest.mark.parametrize("command", [["rotate", *TOY], ["campaign", "--rehearse"], ["collect"]])
def test_a_file_is_no_folder_for_tables_and_that_is_said_before_work(command, tmp_path, capsys):
    """A shape was timed first, and then nothing could be written."""
    (tmp_path / "taken").write_text("mine")
    assert main([*command, "--out", str(tmp_path / "taken" / "out")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_a_missing_gpu_is_named(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["encodings", "--device", "cuda"]) == 2
    assert "torch sees no CUDA device" in capsys.readouterr().err


def test_a_backend_forced_from_outside_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("TAPE_DS_ATTENTION", "sdpa")
    assert main(["encodings", "--device", "cpu"]) == 2
    assert "unset it" in capsys.readouterr().err
