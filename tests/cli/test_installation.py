"""A wheel is an ordinary package with recipes and DeepSpeed's configurations in it; a script runs its own checkout."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

from tape_ds.installation import DS_CONFIGS, RECIPES

CHECKOUT = Path(__file__).resolve().parents[2]
SETUP = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "setuptools"
]


def test_a_wheel_has_every_package_and_the_two_folders():
    found = find_packages(str(CHECKOUT), include=["tape_ds", "tape_ds.*"])
    assert sorted(SETUP["packages"]) == sorted([*found, *SETUP["package-dir"]])
    assert {CHECKOUT / folder for folder in SETUP["package-dir"].values()} == {RECIPES, DS_CONFIGS}


@pytest.mark.parametrize("door", ["launchers/extend_llama.py", "tools/plan.py"])
def test_a_script_runs_its_own_checkout_from_anywhere(door, tmp_path):
    """Python's environment may have the package of another checkout: here it finds a broken one first."""
    (tmp_path / "tape_ds").mkdir()
    (tmp_path / "tape_ds" / "__init__.py").write_text(
        "raise RuntimeError('the package of another checkout')"
    )
    shown = subprocess.run(
        [sys.executable, str(CHECKOUT / door), "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert "usage: " in shown.stdout
