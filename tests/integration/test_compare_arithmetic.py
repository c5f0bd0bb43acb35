"""Two encodings learn to add, are asked beyond what they learned, and stand side by side, by the real launchers."""

import csv
import os
import subprocess
import sys

import pytest

from tape_ds import results
from tests.integration.conftest import ROOT

RECIPE = ["--recipe", "addition_tiny", "--digits", "3", "--samples", "20", "--processes", "2"]
SHORT = ["--max_digits", "2", "--max_steps", "6", "--save_steps", "3", "--held_out_samples", "20"]


def compare(folder, *names, elsewhere):
    """The command as it is typed, from a folder that is not the repository."""
    command = [sys.executable, str(ROOT / "tools" / "compare_arithmetic.py"), "--encodings", *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    return subprocess.run(
        [*command, *RECIPE, "--output", str(folder), "--", *SHORT],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.slow
def test_two_encodings_for_real(tmp_path):
    """The second command adds one and repeats nothing."""
    done = compare(tmp_path / "runs", "rope", elsewhere=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = compare(tmp_path / "runs", "rope", 'tape{"abacus": true}', elsewhere=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rope: its grid is complete, not repeated" in done.stdout
    assert "tape abacus=True: asking" in done.stdout
    figures = results.load(tmp_path / "runs" / "compare_arithmetic.json").figures
    assert (figures["trained"], figures["digits"]) == ([2, 2], [3, 3])
    assert [row["encoding"] for row in figures["encodings"]] == ["rope", "tape abacus=True"]
    for row in figures["encodings"]:
        cells = {name: mean["cells"] for name, mean in row["means"].items()}
        assert cells == {"whole": 9, "trained": 4, "beyond": 5, "both_beyond": 1, "twice": 0}
        assert 0 <= row["means"]["whole"]["value"] <= 1
    with open(tmp_path / "runs" / "compare_arithmetic.csv") as file:
        assert len(list(csv.DictReader(file))) == 18
    assert (tmp_path / "runs" / "compare_arithmetic.png").read_bytes()[:4] == b"\x89PNG"
