"""The program ``tape-ds``: which script a command becomes, and which words go to DeepSpeed's launcher."""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tomllib
from unittest import mock

import pytest

from tape_ds import __main__ as program
from tape_ds import __version__, installation
from tape_ds.__main__ import COMMANDS, LAUNCHER_OPTIONS, LOOKS
from tape_ds.config import loading
from tape_ds.config.kinds import KINDS
from tape_ds.errors import UserError
from tape_ds.installation import ROOT

EXTEND = str(ROOT / "launchers" / "extend_llama.py")
RUNNER = [sys.executable, "-m", "deepspeed.launcher.runner"]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)


def test_every_command_is_there():
    for each in COMMANDS.values():
        path = each.target.replace(".", "/") + "/__main__.py" if each.is_module else each.target
        assert (ROOT / path).is_file(), each


@pytest.mark.parametrize(
    ("name", "words", "has_gpu", "expected"),
    [
        ("extend", "--recipe x", False, [sys.executable, EXTEND, "--recipe", "x"]),
        ("extend", "--recipe x", True, [*RUNNER, EXTEND, "--recipe", "x"]),
        ("extend", "--print_config", True, [sys.executable, EXTEND, "--print_config"]),
        ("extend", "--num_gpus 2 --print_config", True, [*RUNNER, "--num_gpus", "2", EXTEND, "--print_config"]),
        ("extend", "--recipe x --num_gpus=2", False, [*RUNNER, "--num_gpus=2", EXTEND, "--recipe", "x"]),
        ("extend", "--no_ssh --window 8", False, [*RUNNER, "--no_ssh", EXTEND, "--window", "8"]),
        ("evaluate", "report a", True, [sys.executable, "-P", "-m", "evaluation", "report", "a"]),
        (
            "evaluate",
            "report a --num_gpus 2",
            True,
            [*RUNNER, "--num_gpus", "2", "--module", "evaluation", "report", "a"],
        ),
        ("plan", "x --num_gpus 2", True, [sys.executable, str(ROOT / "tools" / "plan.py"), "x", "--num_gpus", "2"]),
        ("experiment", "--list", True, [sys.executable, "-P", "-m", "tools.experiment", "--list"]),
    ],
)
def test_what_a_command_becomes(name, words, has_gpu, expected):
    assert program.started(COMMANDS[name], words.split(), has_gpu) == expected


def test_a_rank_starts_no_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert program.started(COMMANDS["extend"], [], has_gpu=True) == [sys.executable, EXTEND]


def test_the_launcher_is_said(capsys):
    program.started(COMMANDS["extend"], ["--num_gpus", "2", "--window", "a b"], has_gpu=True)
    assert capsys.readouterr().err == f"tape-ds: deepspeed --num_gpus 2 {EXTEND} --window 'a b'\n"


@pytest.mark.parametrize(("words", "told"), [([], True), (["--num_gpus", "2"], True), (["--print_config"], False)])
def test_that_it_will_be_the_cpu_is_said(capsys, words, told):
    program.started(COMMANDS["extend"], words, has_gpu=False)
    assert ("no GPU" in capsys.readouterr().err) == told


@pytest.fixture(scope="module")
def deepspeeds_options():
    """Of its launcher's parser."""
    from deepspeed.launcher import runner

    class Found(BaseException):
        pass

    def found(parser, *_, **__):
        raise Found(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", found), pytest.raises(Found) as raised:
        runner.parse_args([])
    return raised.value.args[0]._option_string_actions


@pytest.mark.parametrize("option", LAUNCHER_OPTIONS)
def test_the_launcher_has_the_option(deepspeeds_options, option):
    assert (deepspeeds_options[option].nargs != 0) == LAUNCHER_OPTIONS[option]


def test_no_script_has_an_option_of_the_launcher():
    taken = {f"--{field}" for kind in KINDS.values() for field in loading.field_hints(kind)}
    taken |= {
        option
        for file in (ROOT / "evaluation").rglob("*.py")
        for option in re.findall(r'"(--\w+)"', file.read_text(encoding="utf-8"))
    }
    assert {"--window", "--lengths"} <= taken and not taken & set(LAUNCHER_OPTIONS)


@pytest.mark.parametrize(("cuda", "own", "expected"), [(0, None, "cpu"), (0, "cuda", "cuda"), (2, None, None)])
def test_the_script_takes_the_process_over(monkeypatch, cuda, own, expected):
    """Signals and exit codes then are the script's."""
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    if own:
        monkeypatch.setenv("DS_ACCELERATOR", own)
    monkeypatch.setattr(program, "gpus", lambda: cuda)
    with mock.patch.object(os, "execve") as become:
        program.main(["merge", "a", "b"])
    path, line, environment = become.call_args.args
    assert path == sys.executable and line == [path, str(ROOT / "tools" / "merge_adapter.py"), "a", "b"]
    assert environment.get("DS_ACCELERATOR") == expected
    assert (installation.FOUND_NO_GPU in environment) is (cuda == 0 and own is None)
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


@pytest.mark.parametrize(("starts", "count", "expected"), [(0, 4, 4), (100, 4, 0), (0, 0, 0)])
def test_gpus_are_those_that_the_driver_shows(monkeypatch, starts, count, expected):
    class Driver:
        def cuInit(self, flags):  # noqa: N802
            return starts

        def cuDeviceGetCount(self, place):  # noqa: N802
            place._obj.value = count
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    assert program.gpus() == expected


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", mock.Mock(side_effect=OSError))
    assert program.gpus() == 0


def test_a_misspelt_command_is_named(capsys):
    assert program.main(["extned"]) == 2
    assert "command = 'extned': unknown" in (said := capsys.readouterr().err) and "did you mean 'extend'?" in said


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_has_a_line_for_each_command(capsys, words):
    assert program.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(re.fullmatch(rf" +{name} +\S.*", line) for line in lines) for name in COMMANDS)
    assert set(LAUNCHER_OPTIONS) <= set(" ".join(lines).split()) and max(map(len, lines)) <= 120


def test_the_folder_is_printed(capsys):
    assert program.main(["--folder"]) == 0
    assert capsys.readouterr().out == f"{ROOT}\n"


def test_the_version_is_printed(capsys):
    assert program.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_help_needs_nothing_heavy():
    """The package itself is stood in for: what its import costs is not this program's."""
    code = f"""
import sys, types
package = sys.modules["tape_ds"] = types.ModuleType("tape_ds")
package.__path__ = [{str(ROOT / "tape_ds")!r}]
from tape_ds import __main__ as program
program.main([])
print(sorted({{"torch", "transformers", "deepspeed", "yaml"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_environments_program_is_this_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"tape-ds": "tape_ds.__main__:main"}
    assert "--print_config" in LOOKS


@pytest.mark.parametrize("typed", [["--hostfile", "hosts"], ["--hostfile=hosts"]])
def test_a_hostfile_that_is_not_there_is_refused(typed, tmp_path, monkeypatch):
    """DeepSpeed's launcher warns, and trains on this machine alone."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="hostfile = 'hosts': no such file"):
        program.started(COMMANDS["extend"], [*typed, "--recipe", "x"], True)
    (tmp_path / "hosts").write_text("node1 slots=8")
    assert typed[0] in program.started(COMMANDS["extend"], [*typed, "--recipe", "x"], True)
