"""The program ``tape-ds``: what a command starts, and which words go to DeepSpeed's launcher."""

import argparse
import ctypes
import importlib
import os
import re
import subprocess
import sys
import tomllib
from unittest import mock

import pytest

from tape_ds import __version__, installation
from tape_ds.cli import program
from tape_ds.cli.program import LOOKS, MODULES
from tape_ds.config.kinds import KINDS
from tape_ds.distributed.launch_command import DEEPSPEED_OPTIONS
from tape_ds.errors import UserError
from tape_ds.installation import ROOT

RUNNER = [sys.executable, "-m", "deepspeed.launcher.runner"]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)


def test_every_command_is_a_module_with_a_main():
    modules = {importlib.import_module(f"tape_ds.cli.{module}") for module in MODULES.values()}
    assert all(callable(module.main) for module in modules)


@pytest.mark.parametrize(
    ("name", "words", "has_gpu", "expected"),
    [
        ("extend", "--recipe x", False, None),
        ("extend", "--recipe x", True, "--module tape_ds extend --recipe x"),
        ("extend", "--print_config", True, None),
        ("extend", "--num_gpus 2 --print_config", True, "--num_gpus 2 --module tape_ds extend --print_config"),
        ("extend", "--recipe x --num_gpus=2", False, "--num_gpus=2 --module tape_ds extend --recipe x"),
        ("extend", "--no_ssh --window 8", False, "--no_ssh --module tape_ds extend --window 8"),
        ("evaluate", "report a", True, None),
        ("evaluate", "report a --num_gpus 2", True, "--num_gpus 2 --module tape_ds evaluate report a"),
        ("plan", "x --num_gpus 2", True, None),
        ("experiment", "--list", True, None),
    ],
)
def test_what_starts_processes(name, words, has_gpu, expected):
    wanted = None if expected is None else [*RUNNER, *expected.split()]
    assert program.deepspeed_line(name, words.split(), has_gpu) == wanted


def test_a_rank_starts_no_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert program.deepspeed_line("extend", [], has_gpu=True) is None


@pytest.mark.parametrize(("words", "told"), [([], True), (["--num_gpus", "2"], True), (["--print_config"], False)])
def test_that_it_will_be_the_cpu_is_said(capsys, words, told):
    program.deepspeed_line("extend", words, has_gpu=False)
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


@pytest.mark.parametrize("option", DEEPSPEED_OPTIONS)
def test_the_launcher_has_the_option(deepspeeds_options, option):
    assert (deepspeeds_options[option].nargs != 0) == DEEPSPEED_OPTIONS[option]


def test_no_script_has_an_option_of_the_launcher():
    taken = {f"--{field}" for kind in KINDS.values() for field in kind.fields()}
    taken |= {
        option
        for file in (ROOT / "tape_ds" / "cli" / "evaluate").rglob("*.py")
        for option in re.findall(r'"(--\w+)"', file.read_text(encoding="utf-8"))
    }
    assert {"--window", "--lengths"} <= taken and not taken & set(DEEPSPEED_OPTIONS)


@pytest.fixture
def variables(monkeypatch):
    """Put back what the program sets for the whole process."""
    monkeypatch.setattr(os, "environ", {name: os.environ[name] for name in os.environ if name != "DS_ACCELERATOR"})
    monkeypatch.setattr(sys, "argv", [])
    return os.environ


@pytest.mark.parametrize(("cuda", "own", "expected"), [(0, None, "cpu"), (0, "cuda", "cuda"), (2, None, None)])
def test_a_command_runs_in_this_process(monkeypatch, variables, cuda, own, expected):
    if own:
        variables["DS_ACCELERATOR"] = own
    monkeypatch.setattr(program, "gpus", lambda: cuda)
    with mock.patch("tape_ds.cli.merge.main", return_value=3) as called:
        assert program.main(["merge", "a", "b"]) == 3
    assert called.call_args.args == (["a", "b"],) and sys.argv == ["tape-ds", "merge", "a", "b"]
    assert variables.get("DS_ACCELERATOR") == expected
    assert (installation.FOUND_NO_GPU in variables) is (cuda == 0 and own is None)


@pytest.mark.parametrize("words", [["keep-alive", "x"], ["keep_alive", "x"], ["--local_rank=0", "keep-alive", "x"]])
def test_ways_to_write_a_command(variables, words):
    with mock.patch("tape_ds.cli.keep_alive.main", return_value=0) as called:
        assert program.main(words) == 0
    assert called.call_args.args == (["x"],)


def test_deepspeed_takes_the_process_over_and_is_shown(monkeypatch, variables, capsys):
    """Signals and exit codes then are its own."""
    monkeypatch.setattr(program, "gpus", lambda: 2)
    with mock.patch.object(os, "execve", side_effect=SystemExit) as become, pytest.raises(SystemExit):
        program.main(["extend", "--num_gpus", "2", "--window", "a b"])
    path, line, environment = become.call_args.args
    shown = "--num_gpus 2 --module tape_ds extend --window"
    assert path == sys.executable and line == [*RUNNER, *shown.split(), "a b"]
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT) and environment["PYTHONSAFEPATH"] == "1"
    assert capsys.readouterr().err == f"tape-ds: deepspeed {shown} 'a b'\n"


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
    assert all(any(re.fullmatch(rf" +{name} +\S.*", line) for line in lines) for name in MODULES)
    assert set(DEEPSPEED_OPTIONS) <= set(" ".join(lines).split()) and max(map(len, lines)) <= 120


def test_the_folders_are_printed(capsys):
    assert program.main(["--folder"]) == 0
    assert capsys.readouterr().out == f"{ROOT}/launchers/recipes\n{ROOT}/ds_configs\n"


def test_the_version_is_printed(capsys):
    assert program.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_help_needs_nothing_heavy():
    code = """
import sys
from tape_ds.cli import program
program.main([])
print(sorted({"torch", "transformers", "deepspeed", "yaml"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_environments_program_is_this_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"tape-ds": "tape_ds.cli.program:main"}
    assert "--print_config" in LOOKS


@pytest.mark.parametrize("typed", [["--hostfile", "hosts"], ["--hostfile=hosts"]])
def test_a_hostfile_that_is_not_there_is_refused(typed, tmp_path, monkeypatch):
    """DeepSpeed's launcher warns, and trains on this machine alone."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="hostfile = 'hosts': no such file"):
        program.deepspeed_line("extend", [*typed, "--recipe", "x"], True)
    (tmp_path / "hosts").write_text("node1 slots=8")
    assert typed[0] in program.deepspeed_line("extend", [*typed, "--recipe", "x"], True)
