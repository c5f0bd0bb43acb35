"""The campaign: the stages in their order and under their limits, and whatever becomes of one, its rows are kept."""

import os
import signal
import tarfile
import threading
import time
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import campaign, table
from benchmarks.__main__ import main
from benchmarks.campaign import STAGES, Part, Stage, parse
from benchmarks.groups import GROUPS


def of_part(number):
    return [(stage.name, stage.seconds) for stage in STAGES if stage.part == number]


@pytest.mark.slow
def test_the_first_part_is_rehearsed(tmp_path, capsys):
    assert run(tmp_path, "--part", "1") == 0, capsys.readouterr().out
    lines = [line for line in table.lines(tmp_path / "campaign_1.jsonl") if "stage" in line]
    assert [line["stage"] for line in lines] == [name for name, _ in of_part(1)]
    assert {line["end"] for line in lines} == {"done"}
    assert {row.group for row in table.read(tmp_path / "campaign_1.jsonl")} == {
        "smoke",
        "attention",
        "recipe",
    }


def stages(monkeypatch, *listed):
    monkeypatch.setattr(campaign, "STAGES", listed)
    monkeypatch.setattr(campaign, "GRACE", 0.5)
    monkeypatch.setattr(campaign, "REHEARSAL", 1)


@pytest.fixture
def own_work(monkeypatch, tmp_path):
    """A folder for the stages' files that no other test has."""
    monkeypatch.setattr(campaign, "WORK", tmp_path / "work")


def run(folder, *more):
    return main(["campaign", "--rehearse", "--out", str(folder), *more])


def ends(folder, part=1):
    lines = table.lines(folder / f"campaign_{part}.jsonl")
    return {line["stage"]: (line["end"], line["why"]) for line in lines if "stage" in line}


WRITE = "import json, sys; open('{rows}', 'a').write(json.dumps({{'row': sys.argv[1]}}) + chr(10))"


@pytest.mark.usefixtures("own_work")
def test_a_stage_that_fails_or_is_late_never_stops_the_next_and_its_rows_are_kept(
    monkeypatch, tmp_path
):
    pid, out = tmp_path / "pid", tmp_path / "out"
    sleep = "signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    child = f"import subprocess, signal, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import signal, time; {sleep}']); open('{pid}', 'w').write(str(p.pid)); {sleep}"  # noqa: E501
    stages(
        monkeypatch,
        Stage(1, "broken", 20, '''-c "print('what it said'); raise SystemExit(7)"'''),
        Stage(1, "elsewhere", 1, "no-such-tool --fast"),
        Stage(1, "first row", 1, f'-c "{WRITE}" first'),
        Stage(1, "endless", -17, f'-c "{WRITE}; {child}" second'),
        Stage(1, "fine", 30, f'-c "{WRITE}; print(chr(33))" third'),
    )
    assert run(out) == 1
    found = ends(out)
    assert found["broken"] == ("failed", "exit code 7; what it said")
    assert found["elsewhere"] == ("failed", "no-such-tool is not installed")
    assert found["endless"][0] == "late" and found["fine"] == ("done", "!")
    rows = [line["row"] for line in table.lines(out / "campaign_1.jsonl") if "row" in line]
    assert rows == ["first", "second", "third"]
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid.read_text()}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid.read_text()}").exists()
    with tarfile.open(out / "campaign_1.tar.gz") as archive:
        assert {"broken.log", "endless.log"} <= set(archive.getnames())


@pytest.mark.usefixtures("own_work")
def test_a_campaign_that_is_ended_ends_its_stage(monkeypatch, tmp_path):
    pid = tmp_path / "pid"
    stages(monkeypatch, Stage(1, "endless", 60, f"-c \"import os, time; open('{pid}', 'w').write(str(os.getpid())); time.sleep(60)\""))  # noqa: E501  # fmt: skip

    def end():
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        run(tmp_path)
    assert ended.value.code == 143
    assert not Path(f"/proc/{pid.read_text()}").exists()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("own_work")
def test_every_stage_s_command_is_one_that_its_program_takes(tmp_path):
    part = Part(1, parse(["--rehearse", "--out", str(tmp_path)]))
    part.rehearse = False
    asked = {}
    for stage in STAGES:
        command = part.command(stage)
        assert not any("{" in word for word in command), stage.name
        if "benchmarks" in command:
            options = benchmarks.parse(command[command.index("benchmarks") + 1 :])
            assert options.device == "cuda"
            for group in options.groups:
                shapes = benchmarks.chosen_shapes(GROUPS[group], options)
                assert shapes, stage.name
                if options.out == part.rows:
                    asked.setdefault(group, []).extend(shapes)
    assert set(asked) == set(GROUPS)
    for name, shapes in asked.items():  # each once, in one part or another
        assert sorted(shape.label for shape in shapes) == sorted(GROUPS[name].cuda)
