"""Everything that a GPU should answer, in stages: for a machine that is lent for minutes and gives one folder back.

    python -m benchmarks collect                                       here: what such a machine lacks, in .carried
    python -m benchmarks campaign --part 1 --carried .carried          there; then parts 2 and 3
    python -m benchmarks campaign --part 1 --rehearse                  every stage in small, on a CPU
    python -m benchmarks choose --results FOLDER                       here: take in the folder that came back

Each stage is a process group with a limit; what an earlier one did not use is left to those after it. One that fails,
is late or lacks something never stops the next. ``campaign_PART.jsonl`` gets each row when it is known, and a line
after each stage; ``campaign_PART.tar.gz`` holds the logs, written again after each stage. With ``--results``, the
folder of an earlier try, stages that were done there are not run again.

Exit codes: 0 every stage is done or lacks something; 1 one failed or was late; 2 something to mend, nothing started.
"""

import argparse
import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import carried, table
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, check_folder, raise_if_any
from tape_ds.installation import ROOT, environment
from tape_ds.kernels import jit
from tape_ds.results import now

WORK = ROOT / ".cache"
LEAST_SECONDS = 5  # a stage is not begun with less
GRACE = 3  # seconds at the end of a stage's limit in which it may stop by itself, and print where it was
REHEARSAL = 4  # by how much longer all limits are in a rehearsal
LOGGED = 1 << 20  # bytes that are kept of a log: its end
SKIPPED = 77  # exit code of a stage that cannot do here what it is for
DONE, FAILED, LATE, LACKING = "done", "failed", "late", "skipped"


class Stage(NamedTuple):
    part: int
    name: str
    seconds: int
    words: str
    """The command, of this Python if it begins with ``-``. ``{rows}``, ``{work}``, ``{device}`` and ``{toys}`` are
    filled in."""
    needs: tuple[str, ...] = ()  # modules or programs
    toy: str | None = None
    """The command of a rehearsal."""
    variables: dict[str, str] = {}


def _groups(part: int, name: str, seconds: int, words: str) -> Stage:
    return Stage(part, name, seconds, f"-m benchmarks {words} --device {{device}} --out {{rows}} {{toys}}")


_SANITIZED = "-m benchmarks attention decode position_mix rotate --toys --only 'triton|ours' --repeats 1"
_PROFILED = "-m benchmarks attention --shapes 'B1 H32 G32' --only triton --repeats 1 --device cuda --out {work}/profile"
_KERNELS = "--clock-control none --set full --kernel-name 'regex:^(forward|values|keys)_kernel' --launch-count 6"
_TESTS = "-m pytest -v --tb=short -rf -m 'not slow' -p no:cacheprovider -o faulthandler_timeout=40"
_TESTS += " -p benchmarks.kernel_tests"
STAGES = (
    Stage(1, "machine", 20, "-m benchmarks.machine --device {device} --out {rows}"),
    _groups(1, "smoke", 60, "smoke"),
    Stage(
        1,
        "kernels",
        90,
        f"{_TESTS} tests/kernels --ignore tests/kernels/test_compile.py",
        ("pytest",),
        f"{_TESTS} tests/kernels/test_rotate.py tests/kernels/test_decode_attention.py",
    ),
    _groups(1, "attention", 150, "attention --shapes 'H32 G32 T8192 K128'"),
    _groups(1, "recipe", 180, "recipe"),
    Stage(1, "deepspeed", 40, "-m benchmarks.train --work {work} --out {rows} {toys}", ("deepspeed",)),
    Stage(
        2,
        "memcheck",
        100,
        f"compute-sanitizer --error-exitcode 3 python {_SANITIZED} --device cuda --out {{work}}/checked",
        ("compute-sanitizer",),
        # An allocator that keeps memory would let an overrun end in another tensor's block.
        variables={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    ),
    _groups(2, "grouped queries and K 64", 160, "attention --shapes 'G8|K64'"),
    _groups(2, "decode", 40, "decode"),
    _groups(2, "position_mix and rotate", 70, "position_mix rotate"),
    _groups(2, "encodings", 160, "encodings"),
    _groups(3, "launches", 360, "launches"),
    Stage(3, "profile", 170, f"ncu {_KERNELS} python {_PROFILED}", ("ncu",)),
)


def main(argv: list[str]) -> int:
    options = parse(argv)
    if options.list:
        print("\n".join(f"{each.part}  {each.seconds:>4} s  {each.name}: {each.words}" for each in STAGES))
        return 0
    check(options)
    parts = [options.part] if options.part else sorted({stage.part for stage in STAGES})
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # a stage must not outlive it
    try:
        ends = [end for part in parts for end in Part(part, options).run()]
    finally:
        signal.signal(signal.SIGTERM, before)
    return 1 if {FAILED, LATE} & set(ends) else 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks campaign", description=__doc__)
    out = Path(os.environ.get("OUT") or "runs/campaign")
    parser.add_argument("--part", type=int, help="of --list; default: all of them")
    parser.add_argument("--minutes", type=float, default=9.0, help="for each part; default: %(default)g")
    parser.add_argument(
        "--out", type=Path, default=out, help="folder of rows and logs; default: $OUT, else %(default)s"
    )
    parser.add_argument("--carried", type=Path, help="what python -m benchmarks collect has made")
    parser.add_argument("--results", type=Path, help="folder of an earlier try: what was done there is not done again")
    parser.add_argument("--rehearse", action="store_true", help=f"in small on a CPU, with {REHEARSAL} times the limits")
    parser.add_argument("--list", action="store_true", help="print the stages, their parts and limits")
    return parser.parse_args(argv)


def check(options: argparse.Namespace) -> None:
    """Report everything wrong with the command line."""
    problems = check_folder("--out", options.out)
    parts = sorted({stage.part for stage in STAGES})
    if options.part not in (None, *parts):
        problems.append(Problem("part", options.part, "unknown part", f"give one of {', '.join(map(str, parts))}"))
    if not options.minutes > 0:
        problems.append(Problem("minutes", options.minutes, "no time", "give more than 0"))
    for field in ("carried", "results"):
        folder = getattr(options, field)
        if folder is not None and not folder.is_dir():
            problems.append(Problem(field, str(folder), "no such folder", "name one that is there, or leave it out"))
    if not options.rehearse and not torch.cuda.is_available():
        problems.append(Problem("rehearse", False, "torch sees no CUDA device", "give --rehearse to try the stages"))
    raise_if_any(problems)


class Part:
    def __init__(self, number: int, options: argparse.Namespace):
        self.number, self.rehearse, self.out = number, options.rehearse, options.out.resolve()
        self.slower = REHEARSAL if self.rehearse else 1
        self.work = WORK / ("rehearsal" if self.rehearse else "campaign")
        self.rows, self.logs = self.out / f"campaign_{number}.jsonl", self.work / f"logs_{number}"
        for former in (self.logs, self.work / carried.SITE):  # the latter may be another Python's
            shutil.rmtree(former, ignore_errors=True)
        for folder in (self.out, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        lines = [] if options.results is None else map(table.lines, sorted(options.results.glob("*.jsonl")))
        self.done = {line["stage"]: line["at"] for each in lines for line in each if line.get("end") == DONE}
        self.kernels_are_built = False
        self.until = time.time() + 60 * options.minutes * self.slower
        if options.carried is not None:
            unpacked = carried.unpack(options.carried, self.work)
            table.append({"carried": unpacked}, self.rows)
            self.kernels_are_built = bool(unpacked["kernels"] and unpacked["same_triton"])
        self.allowed = time.time()
        """Until when a stage may run: all limits so far."""

    def run(self) -> Iterator[str]:
        """Run stage after stage, its line and the archive written at once; yields how each ended."""
        for stage in STAGES:
            if stage.part != self.number:
                continue
            began = time.time()
            self.allowed += stage.seconds * self.slower
            end, why = self.ended(stage)
            line = {"stage": stage.name, "end": end, "seconds": round(time.time() - began, 1)}
            table.append(line | {"limit": stage.seconds * self.slower, "why": why, "at": now()}, self.rows)
            limit = f"of {stage.seconds * self.slower} s"
            print(f"part {self.number} {end:<7} {stage.name}, {line['seconds']} {limit}{why and ': '}{why}", flush=True)
            self.pack()
            yield end

    def ended(self, stage: Stage) -> tuple[str, str]:
        """Return how one stage ended, and the last thing that it printed."""
        if stage.name in self.done:
            return LACKING, f"done at {self.done[stage.name]}"
        lacking = [name for name in stage.needs if not self.has(name, stage)]
        if lacking:
            return LACKING, f"{', '.join(lacking)} is not installed"
        seconds = min(self.allowed, self.until) - time.time()
        if seconds < LEAST_SECONDS:
            return LATE, "no time was left to begin it"
        log = self.logs / f"{stage.name.replace(' ', '_')}.log"
        process, late = self.start(stage, log), False
        try:
            code = process.wait(seconds - GRACE)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        finally:  # whatever is left of it: a launcher's workers hold the GPU's memory
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1][:200] if lines else ""
        if late:
            return LATE, f"ended after {seconds:.0f} s; {last}"
        if code == SKIPPED:
            return LACKING, last
        return (DONE, last) if code == 0 else (FAILED, f"exit code {code}; {last}")

    def has(self, name: str, stage: Stage) -> bool:
        """Return whether a stage's program, or a module that it needs, is installed or was carried here."""
        if stage.words.startswith(name):
            return shutil.which(name) is not None
        return importlib.util.find_spec(name) is not None or (self.work / carried.SITE / name).exists()

    def command(self, stage: Stage) -> list[str]:
        words = stage.toy if self.rehearse and stage.toy is not None else stage.words
        filled_in = {name: shlex.quote(str(path)) for name, path in (("rows", self.rows), ("work", self.work))}
        filled_in["device"], filled_in["toys"] = ("cpu", "--toys") if self.rehearse else ("cuda", "")
        words = f"python {words}" if words.startswith("-") else words
        return [sys.executable if word == "python" else word for word in shlex.split(words.format(**filled_in))]

    def start(self, stage: Stage, log: Path) -> "subprocess.Popen[bytes]":
        """Start a process in a new session, so that all its children can be ended together."""
        own = environment() | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "BENCHMARK_ROWS": str(self.rows)}
        own |= {"TRITON_CACHE_DIR": str(self.work / carried.CACHE)} | stage.variables
        if self.kernels_are_built:  # such a machine may have no C compiler
            own[jit.KERNELS_ARE_BUILT] = "1"
        if "deepspeed" in stage.needs:  # no other stage meets packages that the machine did not have
            own["PYTHONPATH"] += os.pathsep + str(self.work / carried.SITE)
        if self.rehearse:
            own |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
            if "pytest" not in stage.needs:  # compiling would take longer than all else
                own["TORCH_COMPILE_DISABLE"] = "1"
        with open(log, "wb") as file:
            return subprocess.Popen(
                self.command(stage), cwd=ROOT, env=own, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def pack(self) -> None:
        path = self.out / f"campaign_{self.number}.tar.gz"
        part = self.work / path.name
        with tarfile.open(part, "w:gz") as archive:
            for log in sorted(self.logs.iterdir()):
                if log.stat().st_size > LOGGED:
                    log.write_bytes(log.read_bytes()[-LOGGED:])
                archive.add(log, log.name)
        shutil.move(part, path)
