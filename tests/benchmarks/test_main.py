"""The command: what it writes, what it lists, and what it answers to mistakes."""

from benchmarks import table
from benchmarks.__main__ import main
from benchmarks.benchmark_case import BenchmarkCase, CaseEntry
from benchmarks.groups import GROUPS

TOY = ["--device", "cpu", "--toys"]


def test_a_group_is_run_and_stored(tmp_path):
    assert (
        main(
            [
                "rotate",
                "decode",
                *TOY,
                "--only",
                "eager|plain",
                "--repeats",
                "2",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["decode_cpu.jsonl", "decode_cpu.md", "rotate_cpu.jsonl", "rotate_cpu.md"]
    rows = table.read(tmp_path / "rotate_cpu.jsonl")
    assert {row.shape for row in rows} == set(GROUPS["rotate"].toys[1])
    assert {(row.implementation, row.repeats, row.dtype) for row in rows} == {
        ("eager", 2, "float32")
    }


def test_a_wrong_rival_of_ours_fails_the_command(tmp_path, monkeypatch, capsys):
    whole = GROUPS["rotate"].case

    def broken(shape, setting):
        asked = whole(shape, setting)
        entry = next(entry for entry in asked.entries if entry.implementation == "ours")

        def build():
            runner = entry.build()
            return runner._replace(
                outcome=lambda: {name: 2 * x for name, x in runner.outcome().items()}
            )

        return BenchmarkCase([CaseEntry("ours", entry.encoding, build)], asked.truth)

    monkeypatch.setitem(GROUPS, "rotate", GROUPS["rotate"]._replace(case=broken))
    assert main(["rotate", *TOY, "--out", str(tmp_path)]) == 1
    assert "WRONG: rotate" in capsys.readouterr().err
    (row,) = table.read(tmp_path / "rotate_cpu.jsonl")
    assert (row.status, row.total_p50) == ("wrong", None)


def test_all_mistakes_are_named_in_one_message(capsys):
    assert (
        main(["atention", "encodings", "--dtype", "float8", "--device", "cpu", "--repeats", "0"])
        == 2
    )
    message = capsys.readouterr().err
    assert all(field in message for field in ("groups", "dtype", "repeats")), message
