"""Plant each mutant in a copy of the repository and run the daily tests that should notice it.

    python -m tests.mutants                    all of them; a quarter of an hour and more on two cores
    python -m tests.mutants --only pose.py     those whose file holds this text
    python -m tests.mutants --workers 8

Exit codes: 0 every mutant is noticed; 1 one survives, or its line is no longer in the source.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from tests.processes import ROOT


def main() -> int:
    """Say of each mutant which test noticed it."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose file holds this text")
    parser.add_argument("--workers", type=int, default=2, help="of pytest")
    options = parser.parse_args()
    mutants = yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text(encoding="utf-8"))
    wanted = [each for each in mutants if options.only in each["file"]]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        for number, mutant in enumerate(wanted, 1):
            began = time.monotonic()
            noticed = try_one(Path(folder), mutant, options.workers)
            survived += noticed is None
            end = f"killed by {noticed}" if noticed else "SURVIVED"
            print(
                f"{number:2} {mutant['file']}: {mutant['new']}\n   {end}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    print(f"{len(wanted) - survived} of {len(wanted)} killed")
    return 1 if survived else 0


def try_one(copy: Path, mutant: dict[str, Any], workers: int) -> str | None:
    """The first test that fails with ``mutant`` planted in the checkout ``copy``; None where all pass."""
    path = copy / mutant["file"]
    source = path.read_text(encoding="utf-8")
    if source.count(mutant["old"]) != 1:
        raise SystemExit(f"{mutant['file']} does not hold this line once: {mutant['old']}")
    path.write_text(source.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    try:
        for folder in mutant["tests"]:
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-n",
                str(workers),
                "-p",
                "no:cacheprovider",
                folder,
            ]
            environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True
            )
            if failed := re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE):
                return failed[1]
            if done.returncode:
                raise SystemExit(
                    f"pytest could not run {folder}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
                )
        return None
    finally:
        path.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
