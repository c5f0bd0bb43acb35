"""Run engines on folders of every scaling, each in an environment of its own, and compare them with the table.

    python -m tools.engines                        every engine; an hour
    python -m tools.engines mlx-lm ctranslate2
    python -m tools.engines --page                 the tables in docs/, from the data; nothing is run

Results are written to docs/results/engines/NAME.json. Exit codes: 0 as in the table; 1 an engine computes something
else, or could not be installed; 2 an unknown engine. Needs pip's index, 2 GB of disk at a time, and no GPU: engines
that need one are compared by their cosines and sines.
"""

import datetime
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import transformers

from tape_ds import storage
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, command, did_you_mean, raise_if_any
from tape_ds.installation import ROOT
from tools.engines import cases, comparison, environments, page

RESULTS = ROOT / "docs" / "results" / "engines"
CACHE = ROOT / ".cache" / "engines"


@command
def main(argv: list[str] | None = None) -> int:
    known = environments.ENVIRONMENTS
    parser = Parser(prog="python -m tools.engines", description=__doc__)
    parser.add_argument("engines", nargs="*", default=list(known), help=", ".join(known))
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--page", action="store_true", help="only write the tables of the book")
    options = parser.parse_args(argv)
    problems = []
    for name in options.engines:
        if name not in known:
            remedy = did_you_mean(name, known)
            problems.append(Problem("engines", name, "not one that runs here", remedy))
    raise_if_any(problems)

    if options.page:
        page.write()
        return 0

    failed = []
    # one set of folders for all engines, and an environment for each engine
    with tempfile.TemporaryDirectory(prefix="engines-") as temporary:
        folder = Path(temporary) / "cases"
        cases.write(folder)
        for name in options.engines:
            failed += _run(name, folder, Path(temporary) / name, options.output)
    print("\n".join(failed) or "as in the table", flush=True)
    if failed:
        return 1
    return 0


def _run(name: str, folder: Path, out: Path, results: Path) -> list[str]:
    """Run one engine, store what it computed, and return what differs from the table."""
    print(f"{name} ...", flush=True)
    try:
        cost = environments.run(name, folder, out, CACHE / name)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        log = out / "log.txt"
        # what pip or the reader has said last; there is no log where pip did not start
        tail = log.read_text(encoding="utf-8")[-2000:] if log.is_file() else ""
        return [f"{name}: {error}\n{tail}"]
    environment = environments.ENVIRONMENTS[name]
    measured = list(comparison.measured(folder, out, environment.families, environment.reference))
    stored = {
        "engine": name,
        "packages": environment.pins,
        "how": environment.how,
        "date": datetime.date.today().isoformat(),
        "reference": f"transformers {transformers.__version__}, eager, fp32",
        "python": platform.python_version(),
        "seconds": round(cost.seconds),
        "environment_mebibytes": round(cost.mebibytes),
        "right_within": comparison.RIGHT,
        "cases": [each.as_row() for each in measured],
    }
    storage.write_json(results / f"{name}.json", stored)
    print(
        f"{name}: {cost.seconds:,.0f} s, {cost.mebibytes:,.0f} MiB, {results / f'{name}.json'}",
        flush=True,
    )
    return comparison.changes(name, folder, measured)


if __name__ == "__main__":
    sys.exit(main())
