"""Files that a run opens before its first step, and the CPU time of it, beside an earlier version.

    python -m benchmarks start --earlier CHECKOUT

Three parts, each with tiny files in a temporary folder: the identity of a source of many files, which a run asks for at
its start, for the cache of its tokens and for its report; the sums that as many ranks continue from, one rank after the
other; and a run's folder with many checkpoints, listed and looked at. Every version takes its turn in a process of its
own. Opened files are counted by Python's audit hook.
"""

import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.checkout import check_checkout, run_python
from benchmarks.choose import RESULTS
from benchmarks.stored_page import versions_of, write_page
from tape_ds import checkpoint, results, storage
from tape_ds.arguments import Parser, below_one
from tape_ds.errors import check_folder, raise_if_any
from tape_ds.installation import ROOT
from tape_ds.markdown_table import markdown_table

OURS = "this version"
EARLIER = "earlier"
SETTLE_SECONDS = 2.5
"""Files that are younger are read each time."""
_MEASURED = """
import inspect, json, sys, time
from pathlib import Path
from tape_ds import checkpoint
from tape_ds.checkpoint import load
from tape_ds.data import sources
from tape_ds.training import earlier_run

folder, ranks = sys.argv[1], int(sys.argv[2])
opened = 0

def count(event, arguments):
    global opened
    opened += event == "open" and str(arguments[0]).startswith(folder)

class Rank:
    def __init__(self, rank):
        self.rank = rank
        self.world = ranks

def identify():
    for _ in range(3):
        sources.parse(f"text:{folder}/texts/*.txt").fingerprint()

def continue_sums():
    for rank in range(ranks):
        if "rank_sync" in inspect.signature(load.rank_state).parameters:
            load.rank_state(Path(folder, "ranks"), Rank(rank))
        else:
            load.rank_state(Path(folder, "ranks"), rank, ranks)

def look():
    checkpoint.numbered(Path(folder, "run"))
    earlier_run.look(Path(folder, "run"))

sys.addaudithook(count)
found = {}
for name, part in (("sources", identify), ("ranks", continue_sums), ("checkpoints", look)):
    opened = 0
    began = time.process_time()
    part()
    found[name] = {"seconds": time.process_time() - began, "opened": opened}
print(json.dumps(found))
"""


def main(argv: list[str]) -> int:
    parser = Parser(prog="python -m benchmarks start", description=__doc__)
    parser.add_argument(
        "--files", type=int, default=20_000, help="of a source; default: %(default)s"
    )
    parser.add_argument("--ranks", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--checkpoints", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--earlier", type=Path, help="a checkout to compare with")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the result; default: %(default)s"
    )
    options = parser.parse_args(argv)
    problems = below_one(options, "files", "ranks", "checkpoints", "repeats") + check_folder(
        "--out", options.out
    )
    problems += check_checkout(options.earlier)
    raise_if_any(problems)
    names = ("files", "ranks", "checkpoints", "repeats")
    config = {name: getattr(options, name) for name in names}
    started = results.collect(command=["python", "-m", "benchmarks", "start", *argv], config=config)
    versions = {OURS: ROOT}
    if options.earlier is not None:
        versions[EARLIER] = options.earlier.resolve()
    runs: defaultdict[str, list[Any]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as place:
        make(Path(place), options.files, options.ranks, options.checkpoints)
        for _ in range(options.repeats):
            for version, root in versions.items():
                runs[version].append(measured(Path(place), options.ranks, root))
    stored = started.finish({"runs": runs})
    write_page(stored, options.out / "start_cost_cpu.json", page(stored))
    return 0


def make(folder: Path, files: int, ranks: int, checkpoints: int) -> None:
    for name in ("texts", "ranks", "run"):
        (folder / name).mkdir()
    for number in range(files):
        (folder / "texts" / f"{number}.txt").write_text(f"the text of number {number}\n" * 20)
    sums = {"loss": (1.0).hex(), "total_loss": (2.0).hex(), "parts": []}
    for rank in range(ranks):
        storage.write_json(folder / "ranks" / f"rank_state_{rank}.json", sums)
    for step in range(1, checkpoints + 1):
        place = folder / "run" / f"checkpoint-{step}"
        place.mkdir()
        (place / "trained.safetensors").write_bytes(b"x" * 100)
        entries = {"trained.safetensors": checkpoint.entry(place / "trained.safetensors")}
        about: dict[str, Any] = {"processes": ranks, "stage": None, "tensor": 1, "identity": {}}
        checkpoint.Manifest(step=step, files=entries, **about).write(place)
    time.sleep(SETTLE_SECONDS)


def measured(folder: Path, ranks: int, root: Path) -> dict[str, dict[str, float]]:
    """Return what one version needs, by part: CPU seconds, and files opened."""
    printed = run_python(root, ["-c", _MEASURED, str(folder), str(ranks)], folder)
    found: dict[str, dict[str, float]] = json.loads(printed.splitlines()[-1])
    return found


def page(stored: results.Result) -> str:
    """Return the figures with what they were measured with."""
    config = stored.config
    parts = {
        "sources": f"a source of {config['files']:,} files, identified three times",
        "ranks": f"the sums of {config['ranks']} ranks, on all of them",
        "checkpoints": f"a folder of {config['checkpoints']} checkpoints",
    }
    rows = []
    for part, described in parts.items():
        for version, runs in stored.figures["runs"].items():
            seconds = statistics.median(run[part]["seconds"] for run in runs)
            rows.append([described, version, f"{runs[0][part]['opened']:,}", f"{seconds:.2f}"])
    versions = versions_of(stored, "python", "torch")
    lines = [
        "# Files that a run opens before its first step",
        f"One thread of {stored.hardware['cpu']}; CPU seconds (user and system) are medians of {config['repeats']}.",
        markdown_table(["what", "by", "files opened", "CPU seconds"], rows),
        f"No seed: nothing is random. {stored.started}, commit {stored.commit}. {versions}.",
        f"    {' '.join(stored.command)}",
    ]
    return "\n\n".join(lines) + "\n"
