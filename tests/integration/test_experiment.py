"""Experiments by the real launchers and scorers: a small one of two seeds, and those of the published tables."""

import os
import shutil
import subprocess
import sys

import pytest

from tape_ds import results
from tests.integration.conftest import ROOT
from tools.experiment import pages, table
from tools.experiment.pages import Measured

SMALL = """
about: two encodings that learn to add
recipe: addition_tiny
fields: {max_digits: 2, max_steps: 6, save_steps: 3, held_out_samples: 20}
arms: {rope: {position_encoding: rope}, tape: {position_encoding: tape}}
score: ["launch --module evaluation arithmetic {run} --overwrite --digits 3 --samples 20"]
primary: exact_match_beyond
"""
MINUTES = 7
"""What is said to take longer on two cores is not run here."""
PUBLISHED = [name for name in table.shipped() if (asked := table.read(name)).label and (asked.minutes or 0) <= MINUTES]


def run(folder, *words):
    """The command as it is typed, from a folder that is not the repository."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tools.experiment", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_comparison_over_seeds(tmp_path):
    """The second command adds a seed and repeats nothing."""
    (tmp_path / "mine.yaml").write_text(SMALL)
    run(tmp_path, "mine.yaml", "--seeds", "0", "--processes", "2")
    said = run(tmp_path, "mine.yaml", "--seeds", "0", "1", "--processes", "1", "--jobs", "2")
    assert said.count("complete, not repeated") == 2 and said.count(": training, see") == 2
    comparison = results.load(tmp_path / "runs" / "mine" / "mine.json").figures["comparison"]
    assert comparison["seeds"] == [0, 1] and comparison["primary"] == "addition_2_exact_match_beyond"
    assert [(row["arm"], row["seed"]) for row in comparison["runs"]] == [
        (a, s) for s in (0, 1) for a in ("rope", "tape")
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all of them write, so that what they share is made once."""
    made = tmp_path_factory.mktemp("experiments")
    shutil.copy(ROOT / "README.md", made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_small_form_of_a_published_table(name, folder):
    run(folder, name, "--results", "pages")
    if pages.tables_of(table.read(name).label) and name != "table5":  # which is stored by hand
        found = Measured.of(results.load(folder / "pages" / f"{name}_small.json"))
        assert found.rows and all(found.rows.values()), "a row without a number"
