"""The campaign: every stage runs on toys, and whatever becomes of one, the next is run and everything is kept.

Here the stages that are benchmarks are forked from a process that has imported all of it (``tests.processes``): twelve
interpreters would spend two minutes on imports alone. ``python -m benchmarks campaign --rehearse`` starts them all.
"""

import importlib.util
import json
import os
import signal
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as benchmarks
from benchmarks import campaign, table
from benchmarks.__main__ import main
from benchmarks.campaign import STAGES, Part, Stage, parse
from benchmarks.groups import GROUPS
from tests.processes import Forked


class Fork:
    """A stage that is forked instead of started."""

    def __init__(self, command, log):
        found = importlib.util.find_spec(command[2])
        if found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{command[2]}.__main__")
        self.job = Forked(Path(found.origin), command[3:], log)
        (self.pid,) = self.job.ranks

    def wait(self, seconds=60.0):
        return self.job.wait(seconds)


@pytest.fixture
def forking(monkeypatch):
    start = Part.start

    def fork(self, command, log):
        # A launcher starts its own; and Triton is asked for its interpreter before anything is imported.
        started = {"benchmarks.train", "launches"} & set(command)
        return start(self, command, log) if started else Fork(command, log)

    monkeypatch.setattr(Part, "start", fork)


@pytest.mark.slow
def test_every_stage_runs_on_toys(forking, tmp_path, capsys):
    assert main(["campaign", "--rehearse", "--out", str(tmp_path)]) == 0, capsys.readouterr().out
    lines = capsys.readouterr().out.splitlines()
    done = [line for line in lines if " done " in line]
    assert len(lines) == len(STAGES)
    assert [line for line in lines if " done " not in line and " skipped " not in line] == []
    assert len(done) >= len(STAGES) - 6  # no sanitizer, no profiler; what another stage runs
    home = tmp_path / "rehearsal"
    results = {path.name for path in (home / "benchmarks" / "results").iterdir()}
    assert {f"{name}_cpu.csv" for name in GROUPS} <= results
    assert {"ceilings_cpu.json", "planner_cpu.md", "train_cpu_sdpa.json"} <= results
    packed = {row.implementation for row in table.read(home / "benchmarks" / "results" / "packed_cpu.csv")}
    assert {"attend sdpa", "attend reference"} <= packed
    steps = json.loads((home / "benchmarks" / "results" / "train_cpu_sdpa.json").read_text())["figures"]["steps"]
    assert [each["step"] for each in steps] == [1, 2]
    assert json.loads((home / "tape_ds" / "model" / "attention" / "table.json").read_text()) == []
    with tarfile.open(tmp_path / "campaign_2.tar.gz") as archive:
        names = archive.getnames()
    assert {"benchmarks/results/packed_cpu.csv", "tape_ds/model/attention/table.json"} <= set(names)
    assert not any("recipe" in name for name in names)  # of another part


def stages(monkeypatch, *listed):
    monkeypatch.setattr(campaign, "STAGES", listed)
    monkeypatch.setattr(campaign, "LEAST_SECONDS", 0.2)


def run(folder, *more):
    return main(["campaign", "--rehearse", "--out", str(folder), *more])


def test_a_failed_a_late_and_a_lacking_stage_never_stop_the_next(monkeypatch, tmp_path, capsys):
    """A late stage's own children are ended with it: a launcher's workers would hold the GPU's memory."""
    pid = tmp_path / "pid"
    child = f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); open('{pid}', 'w').write(str(p.pid)); time.sleep(60)"  # noqa: E501
    stages(
        monkeypatch,
        Stage(1, "broken", 20, '''-c "print('what it said'); raise SystemExit(7)"'''),
        Stage(1, "endless", 2, f'-c "{child}"'),
        Stage(1, "elsewhere", 20, "no-such-tool --fast", ("no-such-tool",)),
        Stage(1, "fine", 20, '''-c "open('{results}/fine_cpu.csv', 'w'); print('all well')"'''),
    )
    assert run(tmp_path) == 1
    told = [line.split(" part 1 ")[1] for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[:2] for line in told] == [
        ["failed", "broken,"],
        ["late", "endless,"],
        ["skipped", "elsewhere,"],
        ["done", "fine,"],
    ]
    assert "exit code 7; what it said" in told[0]
    assert "no-such-tool is not installed" in told[2]
    assert told[3].endswith("all well")
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid.read_text()}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid.read_text()}").exists()
    kept = (tmp_path / "campaign_1.txt").read_text().splitlines()
    assert [line.split(" part 1 ")[1] for line in kept] == told
    with tarfile.open(tmp_path / "campaign_1.tar.gz") as archive:
        names = set(archive.getnames())
    logs = {f".cache/campaign/logs/1_{name}.log" for name in ("broken", "endless", "fine")}
    assert names == logs | {"benchmarks/results/fine_cpu.csv", ".cache/campaign/campaign_1.txt"}


def test_a_campaign_that_is_ended_ends_its_stage(monkeypatch, tmp_path):
    """The stage has a session of its own, which whoever ends the campaign does not reach."""
    script = "import os, time; open('{results}/pid', 'w').write(str(os.getpid())); time.sleep(60)"
    stages(monkeypatch, Stage(1, "endless", 60, f'-c "{script}"'))
    pid = tmp_path / "rehearsal" / "benchmarks" / "results" / "pid"

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


def test_what_was_done_is_kept_before_the_next_begins(monkeypatch, tmp_path):
    """The machine may be gone at any moment: the second stage finds the first one's line and archive."""
    script = "import sys, tarfile; sys.exit('benchmarks/results/a_cpu.csv' not in tarfile.open('{results}/../../../campaign_1.tar.gz').getnames())"  # noqa: E501
    stages(
        monkeypatch, Stage(1, "a", 20, '''-c "open('{results}/a_cpu.csv', 'w')"'''), Stage(1, "b", 20, f'-c "{script}"')
    )
    assert run(tmp_path) == 0


def test_the_minutes_end_a_part(monkeypatch, tmp_path, capsys):
    stages(
        monkeypatch,
        Stage(1, "long", 60, '-c "import time; time.sleep(60)"'),
        Stage(1, "never", 60, '-c "open({results})"'),
    )
    began = time.monotonic()
    assert run(tmp_path, "--part", "1", "--minutes", "0.03") == 1
    assert time.monotonic() - began < 10
    told = capsys.readouterr().out.splitlines()
    assert "late    long" in told[0] and "ended after 2 s" in told[0]
    assert "no time was left to begin it" in told[1]


@pytest.fixture
def commands(tmp_path):
    """Every stage's command as on a GPU."""
    made = {}
    for number in {stage.part for stage in STAGES}:
        part = Part(number, parse(["--rehearse", "--out", str(tmp_path)]))
        part.rehearse = False
        made |= {stage.name: part.command(stage) for stage in STAGES if stage.part == number}
    return made


def test_every_stage_s_command_is_one_that_its_program_takes(commands):
    assert len(commands) == len(STAGES)
    asked = set()
    for name, command in commands.items():
        assert not any("{" in word for word in command), name
        if "benchmarks" in command and command[command.index("benchmarks") + 1] != "choose":
            options = benchmarks.parse(command[command.index("benchmarks") + 1 :])
            assert options.device == "cuda" and set(options.groups) <= set(GROUPS)
            chosen = [benchmarks.chosen_shapes(benchmarks.known(options)[group], options) for group in options.groups]
            assert all(chosen), name
            if not (options.toys or options.only):
                assert Path(options.out).name == "results"
                asked |= set(options.groups)
    assert asked == set(GROUPS)
    assert commands["memcheck"][:3] == ["compute-sanitizer", "--tool", "memcheck"]
    assert commands["attention"][0] == commands["memcheck"][5] == sys.executable
    assert "regex:^(forward|values|keys)_kernel" in commands["profile"]


def test_the_list_says_stages_parts_and_limits(capsys):
    assert main(["campaign", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(STAGES)
    assert lines[0].startswith("1    60 s  ceilings: -m benchmarks.ceilings")
    assert {line[0] for line in lines} == set("1234")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--part", "7", "--minutes", "0", "--rehearse"], ["part = 7", "give one of 1, 2, 3, 4", "no time"]),
        ([], ["torch sees no CUDA device", "--rehearse"]),
    ],
)
def test_mistakes_are_named_before_anything_starts(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["campaign", "--out", str(tmp_path / "out"), *arguments]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message
    assert not os.path.exists(tmp_path / "out")
