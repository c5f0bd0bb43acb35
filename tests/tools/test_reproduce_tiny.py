"""Every table and figure from start to end in its tiny form: two CPU cores, minutes each, no network."""

import subprocess
import sys

import pytest

from tape_ds import results
from tools.reproduce import registry, render
from tools.reproduce.experiment import ROOT, TINY

MINUTES = 60
"""However loaded the machine is."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Where all of them write, so that what they share is made once."""
    return tmp_path_factory.mktemp("reproduce")


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.EXPERIMENTS)
def test_tiny_form(name, runs):
    command = [sys.executable, "-m", "tools.reproduce", name, "--output", str(runs / name), "--processes", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * MINUTES)
    logs = "\n".join(path.read_text()[-2000:] for path in runs.glob("*/steps/*.log")) if done.returncode else ""
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{logs}"
    found = render.measured(results.load(runs / name / f"{name}_{TINY}.json"))
    assert found.values or found.files
    assert all(numbers for numbers in found.values.values()), "a row without a number"
    assert (runs / name / f"{name}_{TINY}.md").read_text().startswith(f"# {registry.EXPERIMENTS[name].label}: ")
