"""The program ``tape-ds``: what a command starts, and the words that go to DeepSpeed's launcher."""

import argparse
import ctypes
import importlib
import os
import re
import sys
from unittest import mock

import pytest
from deepspeed.launcher import runner

from tape_ds import __version__, installation
from tape_ds.cli import program
from tape_ds.cli.program import MODULES
from tape_ds.config.kinds import KINDS
from tape_ds.distributed import hostfile
from tape_ds.distributed.launch_command import COMMANDS, DEEPSPEED_OPTIONS, OPTION_NAMES, TRAINING
from tape_ds.errors import UserError
from tape_ds.installation import ROOT

RUNNER = [sys.executable, "-m", "deepspeed.launcher.runner"]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)


def test_every_command_is_a_module_with_a_main():
    modules = {importlib.import_module(f"tape_ds.cli.{module}") for module in MODULES.values()}
    assert all(callable(module.main) for module in modules)


def test_every_kind_of_recipe_has_its_script_and_every_training_command_its_line():
    files = {path.stem for path in (ROOT / "launchers").glob("*.py")}
    assert set(KINDS) == set(COMMANDS) == files - {"keep_alive"}
    assert list(program.GROUPS["Train"]) == list(TRAINING)


@pytest.mark.parametrize(
    ("name", "words", "has_gpu", "expected"),
    [
        ("extend", "--recipe x", False, None),
        ("extend", "--recipe x", True, "--module tape_ds extend --recipe x"),
        ("extend", "--print_config", True, None),
        (
            "extend",
            "--num_gpus 2 --print_config",
            True,
            "--num_gpus 2 --module tape_ds extend --print_config",
        ),
        ("extend", "--no_ssh --window 8", False, "--no_ssh --module tape_ds extend --window 8"),
        (
            "evaluate",
            "report a --num_gpus 2",
            True,
            "--num_gpus 2 --module tape_ds evaluate report a",
        ),
        ("plan", "x --num_gpus 2", True, None),
        ("extend", "x --gpus 2", False, "--num_gpus 2 --module tape_ds extend x"),
        ("evaluate", "report a --gpus=2", True, "--num_gpus=2 --module tape_ds evaluate report a"),
    ],
)
def test_the_line_of_deepspeed_s_launcher(name, words, has_gpu, expected):
    wanted = None if expected is None else [*RUNNER, *expected.split()]
    assert program.deepspeed_line(name, words.split(), has_gpu) == wanted


def test_deepspeed_s_launcher_has_our_list_of_options():
    class Found(BaseException):
        pass

    def found(parser, *_, **__):
        raise Found(parser)

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", found),
        pytest.raises(Found) as raised,
    ):
        runner.parse_args([])
    theirs = raised.value.args[0]._option_string_actions
    assert {option: theirs[option].nargs != 0 for option in DEEPSPEED_OPTIONS} == DEEPSPEED_OPTIONS


def test_no_command_has_an_option_of_the_launcher():
    taken = {f"--{field}" for kind in KINDS.values() for field in kind.fields()}
    taken |= {
        option
        for file in (ROOT / "tape_ds" / "cli" / "evaluate").rglob("*.py")
        for option in re.findall(r'"(--\w+)"', file.read_text(encoding="utf-8"))
    }
    assert {"--window", "--lengths"} <= taken and not taken & {*DEEPSPEED_OPTIONS, *OPTION_NAMES}


@pytest.fixture
def variables(monkeypatch):
    """Put back what the program sets for the whole process."""
    monkeypatch.setattr(
        os, "environ", {name: os.environ[name] for name in os.environ if name != "DS_ACCELERATOR"}
    )
    monkeypatch.setattr(sys, "argv", [])
    return os.environ


@pytest.mark.parametrize(
    ("cuda", "own", "expected"), [(0, None, "cpu"), (0, "cuda", "cuda"), (2, None, None)]
)
def test_a_command_runs_in_this_process(monkeypatch, variables, cuda, own, expected):
    if own:
        variables["DS_ACCELERATOR"] = own
    monkeypatch.setattr(program, "gpus", lambda: cuda)
    with mock.patch("tape_ds.cli.merge.main", return_value=3) as called:
        assert program.main(["merge", "a", "b"]) == 3
    assert called.call_args.args == (["a", "b"],) and sys.argv == ["tape-ds", "merge", "a", "b"]
    assert variables.get("DS_ACCELERATOR") == expected
    assert (installation.FOUND_NO_GPU in variables) is (cuda == 0 and own is None)


def test_deepspeed_replaces_the_process(monkeypatch, variables):
    """Signals and exit codes are then its own."""
    monkeypatch.setattr(program, "gpus", lambda: 2)
    with (
        mock.patch.object(os, "execve", side_effect=SystemExit) as become,
        pytest.raises(SystemExit),
    ):
        program.main(["extend", "--num_gpus", "2", "--window", "a b"])
    path, line, environment = become.call_args.args
    shown = "--num_gpus 2 --module tape_ds extend --window"
    assert path == sys.executable and line == [*RUNNER, *shown.split(), "a b"]
    assert (
        environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
        and environment["PYTHONSAFEPATH"] == "1"
    )


@pytest.mark.parametrize(("starts", "expected"), [(0, 4), (100, 0)])
def test_gpus_are_those_that_the_driver_shows(monkeypatch, starts, expected):
    class Driver:
        def cuInit(self, flags):  # noqa: N802
            return starts

        def cuDeviceGetCount(self, place):  # noqa: N802
            place._obj.value = 4
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    assert program.gpus() == expected
    monkeypatch.setattr(ctypes, "CDLL", mock.Mock(side_effect=OSError))
    assert program.gpus() == 0, "no driver"


def test_folders_and_version_are_printed(capsys):
    assert program.main(["--folder"]) == program.main(["--version"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{ROOT}/launchers/recipes",
        f"{ROOT}/ds_configs",
        __version__,
    ]


def test_an_installed_package_lists_no_command_of_a_checkout(monkeypatch):
    """It listed ``experiment``, which ended with: experiments are no part of an installed package."""
    listed = set(re.findall(r"^    ([a-z][a-z-]*)  ", program.usage(), re.MULTILINE))
    assert listed == set(MODULES)
    monkeypatch.setattr(installation, "IS_CHECKOUT", False)
    assert set(re.findall(r"^    ([a-z][a-z-]*)  ", program.usage(), re.MULTILINE)) == listed - {
        "experiment"
    }


def test_a_misspelt_command_is_named(capsys):
    assert program.main(["extned"]) == 2
    assert "command = 'extned': unknown" in capsys.readouterr().err


@pytest.mark.parametrize("typed", [["--hostfile", "hosts"], ["--hostfile=hosts"]])
def test_a_missing_hostfile_is_refused(typed, tmp_path, monkeypatch):
    """DeepSpeed's launcher would train on this machine alone."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="hostfile = 'hosts': no such file"):
        program.deepspeed_line("extend", [*typed, "--recipe", "x"], True)
    (tmp_path / "hosts").write_text("node1 slots=8")
    monkeypatch.setattr(hostfile, "check_reachable", lambda *asked: None)
    assert typed[0] in program.deepspeed_line("extend", [*typed, "--recipe", "x"], True)
