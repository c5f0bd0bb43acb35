"""A version of this project in its checkout, to be measured next to others."""

import os
import subprocess
import sys
from pathlib import Path

from tape_ds.errors import Problem


def check_checkout(earlier: Path | None) -> list[Problem]:
    """Check the folder that ``--earlier`` names, if it is given."""
    if earlier is None or (earlier / "tape_ds" / "__init__.py").is_file():
        return []
    return [Problem("--earlier", str(earlier), "no checkout of tape-ds", "name its folder")]


def run_python(root: Path, words: list[str], folder: Path) -> str:
    """Run Python with these words by the version in ``root``, on one thread and in ``folder``; return what it printed.

    The folder that a command starts in comes first where ``-c`` looks for packages: it holds none, or is ``root``.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout
