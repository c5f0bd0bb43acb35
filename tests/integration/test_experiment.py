"""The experiments of the published tables by the real launchers and scorers, in their small form."""

import os
import shutil
import subprocess
import sys

import pytest

from tape_ds import results
from tests.integration.conftest import ROOT
from tools.experiment import published, table
from tools.experiment.pages import Measured

MINUTES = 7
"""What is estimated to take longer on two cores is not run here."""
PUBLISHED = [
    name
    for name in table.shipped()
    if (asked := table.read(name)).label and (asked.minutes or 0) <= MINUTES
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
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tools.experiment", name, "--results", "pages"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    if published.tables_of(table.read(name).label) and name != "table5":  # which is stored by hand
        found = Measured.of(results.load(folder / "pages" / f"{name}_small.json"))
        assert found.rows and all(found.rows.values()), "a row without a number"
