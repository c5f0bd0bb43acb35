"""A wheel is an ordinary package with recipes and DeepSpeed's configurations in it; a script runs its own checkout."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

from tape_ds import installation
from tape_ds.installation import DS_CONFIGS, RECIPES, ROOT

CHECKOUT = Path(__file__).resolve().parents[2]
SETUP = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
SCRIPTS = sorted(path for folder in ("launchers", "tools") for path in (CHECKOUT / folder).glob("*.py"))
DOORS = [path for path in SCRIPTS if "from tape_ds.cli." in path.read_text(encoding="utf-8").partition("__main__")[2]]


def test_in_a_checkout_everything_is_in_top_level_folders():
    assert (ROOT, RECIPES, DS_CONFIGS) == (CHECKOUT, CHECKOUT / "launchers" / "recipes", CHECKOUT / "ds_configs")


def test_a_wheel_has_every_package_and_the_two_folders():
    found = find_packages(str(CHECKOUT), include=["tape_ds", "tape_ds.*"])
    assert sorted(SETUP["packages"]) == sorted([*found, *SETUP["package-dir"]])
    assert {CHECKOUT / folder for folder in SETUP["package-dir"].values()} == {RECIPES, DS_CONFIGS}


def test_a_command_finds_modules_and_programs(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    variables = installation.environment()
    assert variables["PYTHONPATH"] == f"{ROOT}:/mine"
    assert variables["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_a_door_is_short():
    assert len(DOORS) == 15
    doors = [*DOORS, CHECKOUT / "evaluation" / "__main__.py"]
    assert all(len(door.read_text(encoding="utf-8").splitlines()) <= 40 for door in doors)


@pytest.mark.parametrize("door", DOORS, ids=lambda path: path.stem)
def test_a_door_runs_from_anywhere_and_without_the_environment_s_package(door, tmp_path):
    """Python's environment may have the package of another checkout: here it finds a broken one first."""
    (tmp_path / "tape_ds").mkdir()
    (tmp_path / "tape_ds" / "__init__.py").write_text("raise RuntimeError('the package of another checkout')")
    shown = subprocess.run(
        [sys.executable, str(door), "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert "usage: " in shown.stdout
