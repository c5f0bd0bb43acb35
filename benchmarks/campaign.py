"""Everything that a GPU should answer, in stages: for a machine that is lent for minutes.

    python -m benchmarks campaign --part 1 --minutes 9 --out runs/campaign      one part; without --part all, in turn
    python -m benchmarks campaign --rehearse --out /tmp/rehearsal                every stage on toys, on a CPU
    python -m benchmarks campaign --list

Each stage is a process with a limit of its own; one that fails, is late or lacks something never stops the next. The
most valuable come first, in a part and among the parts. After each a line goes to ``campaign_PART.txt``, and
``campaign_PART.tar.gz`` holds all that the part has made so far, to be unpacked over a checkout: tables for
``benchmarks/results``, the table of ``attention_backend: auto`` and the stages' logs. A part reads what an earlier one
left in its checkout: unpack that first on another machine.

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

from benchmarks.choose import RESULTS, TABLE
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, check_folder, raise_if_any
from tape_ds.installation import ROOT, environment
from tape_ds.results import now

LEAST_SECONDS = 10
"""A stage is not begun with less."""
DONE, FAILED, LATE, LACKING = "done", "failed", "late", "skipped"


class Stage(NamedTuple):
    """One process."""

    part: int
    name: str
    seconds: int
    """Its limit."""
    words: str
    """What is run, by this Python where it begins with ``-``. ``{results}``, ``{table}``, ``{work}``, ``{device}`` and
    ``{toys}`` are filled in."""
    needs: tuple[str, ...] = ()
    """Modules or programs."""
    toy: str | None = None
    """What the rehearsal runs instead; empty where another stage runs the same."""


def _group(part: int, seconds: int, groups: str, needs: tuple[str, ...] = ()) -> Stage:
    return Stage(part, groups, seconds, f"-m benchmarks {groups} --device {{device}} --out {{results}} {{toys}}", needs)


def _train(backend: str, of_toy: str = "") -> Stage:
    words = "-m benchmarks.train --work {work} --out {results} --backend "
    return Stage(4, f"train {backend}", 200, words + backend, ("deepspeed",), of_toy and f"{words}{of_toy} --toys")


_OURS = (
    "attention packed decode position_mix rotate --only ours --repeats 1 --device {device} --out {work}/probe --toys"
)
_PROFILED = (
    "attention --only ours --repeats 1 --shapes 'B1 H32 G32 T8192 K128' --device {device} --out {work}/probe {toys}"
)
_KERNELS = "--clock-control none --set full --kernel-name 'regex:^(forward|values|keys)_kernel' --launch-count 6"
_GPU_TESTS = "-m pytest -q -m gpu -p no:cacheprovider tests/"
# Without DeepSpeed the others cannot be imported, and pytest would run none.
_OTHER_TESTS = "model/attention tests/model/test_score_bias.py tests/model/positions tests/benchmarks/test_groups.py"
STAGES = (
    Stage(1, "ceilings", 60, "-m benchmarks.ceilings --device {device} --out {results} {toys}"),
    Stage(1, "gpu tests", 200, _GPU_TESTS + "kernels", ("pytest",), _GPU_TESTS + "kernels/test_rotate.py"),
    *(
        Stage(1, tool, 120, f"compute-sanitizer --tool {tool} --error-exitcode 3 python -m benchmarks {_OURS}", (name,))
        for tool, name in (("memcheck", "compute-sanitizer"), ("racecheck", "compute-sanitizer"))
    ),
    _group(1, 400, "launches"),
    _group(2, 200, "attention"),
    _group(2, 160, "packed"),
    Stage(2, "choose", 60, "-m benchmarks choose --results {results} --table {table}"),
    _group(2, 80, "layer"),
    _group(2, 90, "decode position_mix rotate"),
    Stage(2, "choose again", 60, "-m benchmarks choose --results {results} --table {table}", (), ""),
    _group(3, 360, "recipe"),
    Stage(3, "planner", 60, "-m benchmarks.planner --results {results} {toys}", ("deepspeed",)),
    _group(3, 200, "step generate"),
    _train("varlen", "sdpa"),
    _train("triton"),
    Stage(4, "profile", 90, f"ncu {_KERNELS} python -m benchmarks {_PROFILED}", ("ncu",)),
    Stage(4, "other gpu tests", 120, _GPU_TESTS + _OTHER_TESTS, ("pytest",), ""),
    _group(4, 240, "formulation table4"),
    _group(4, 120, "encodings"),
    _group(4, 240, "memory_savings", needs=("deepspeed",)),
)


def main(argv: list[str]) -> int:
    """Run the parts that are asked for."""
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
    """Return the command line."""
    parser = Parser(prog="python -m benchmarks campaign", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/campaign"), help="folder of status lines and archives")
    parser.add_argument("--minutes", type=float, default=9.0, help="for each part; default: %(default)g")
    parser.add_argument("--part", type=int, help="of --list; default: all of them")
    parser.add_argument("--rehearse", action="store_true", help="toys on a CPU; nothing of the checkout is written")
    parser.add_argument("--list", action="store_true", help="say the stages, their parts and limits")
    return parser.parse_args(argv)


def check(options: argparse.Namespace) -> None:
    """Report everything wrong with the command line.

    Raises:
        UserError: no such part, no time, no GPU, no folder to write to.
    """
    problems = check_folder("--out", options.out)
    parts = sorted({stage.part for stage in STAGES})
    if options.part not in (None, *parts):
        problems.append(Problem("part", options.part, "unknown part", f"give one of {', '.join(map(str, parts))}"))
    if not options.minutes > 0:
        problems.append(Problem("minutes", options.minutes, "no time", "give more than 0"))
    if not options.rehearse and not torch.cuda.is_available():
        problems.append(Problem("rehearse", False, "torch sees no CUDA device", "give --rehearse to try the stages"))
    raise_if_any(problems)


class Part:
    """One part of the campaign, on its way."""

    def __init__(self, number: int, options: argparse.Namespace):
        self.number, self.rehearse, self.out = number, options.rehearse, options.out.resolve()
        self.began = time.time()
        self.until = self.began + 60 * options.minutes
        # A rehearsal has a home of its own with the checkout's folders.
        self.home = self.out / "rehearsal" if self.rehearse else ROOT
        self.results, self.table = (self.home / path.relative_to(ROOT) for path in (RESULTS, TABLE))
        self.work = self.home / ".cache" / "campaign"
        for folder in (self.out, self.results, self.table.parent, self.work / "logs"):
            folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> Iterator[str]:
        """Stage after stage, its line and the archive written at once; gives how each ended."""
        for stage in STAGES:
            if stage.part != self.number:
                continue
            began = time.time()
            end, why = self.ended(stage)
            took = f"{stage.name}, {time.time() - began:.0f} s"
            line = f"{now()} part {self.number} {end:<7} {took}{': ' if why else ''}{why}"
            print(line, flush=True)
            with open(self.out / f"campaign_{self.number}.txt", "a", encoding="utf-8") as file:
                file.write(line + "\n")
            self.pack()
            yield end

    def ended(self, stage: Stage) -> tuple[str, str]:
        """Return how one stage ended, and the last thing that it said."""
        if self.rehearse and stage.toy == "":
            return LACKING, "rehearsed by a stage that runs the same"
        lacking = [name for name in stage.needs if not (shutil.which(name) or importlib.util.find_spec(name))]
        if lacking:
            return LACKING, f"{', '.join(lacking)} is not installed"
        seconds = min(stage.seconds, self.until - time.time())
        if seconds < LEAST_SECONDS:
            return LATE, "no time was left to begin it"
        log = self.work / "logs" / f"{self.number}_{stage.name.replace(' ', '_')}.log"
        process = self.start(self.command(stage), log)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # end whatever is left of it: a launcher's workers hold the GPU's memory
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1][:200] if lines else ""
        if code is None:
            return LATE, f"ended after {seconds:.0f} s; {last}"
        return (DONE, last) if code == 0 else (FAILED, f"exit code {code}; {last}")

    def command(self, stage: Stage) -> list[str]:
        """Return the stage's words with everything filled in."""
        words = stage.toy if self.rehearse and stage.toy is not None else stage.words
        places = {"results": self.results, "table": self.table, "work": self.work}
        filled_in = {name: shlex.quote(str(path)) for name, path in places.items()}
        filled_in["device"], filled_in["toys"] = ("cpu", "--toys --repeats 1") if self.rehearse else ("cuda", "")
        words = f"python {words}" if words.startswith("-") else words
        return [sys.executable if word == "python" else word for word in shlex.split(words.format(**filled_in))]

    def start(self, command: list[str], log: Path) -> "subprocess.Popen[bytes]":
        """Return a process in a session of its own, so that all it starts can be ended together."""
        own = environment() | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        own |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if self.rehearse else {}
        with open(log, "wb") as file:
            return subprocess.Popen(
                command, cwd=ROOT, env=own, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def pack(self) -> None:
        """Write the archive anew: what this part has made, by its place in the checkout."""
        made = [self.table, *sorted(self.results.iterdir()), *sorted((self.work / "logs").iterdir())]
        path = self.out / f"campaign_{self.number}.tar.gz"
        part = path.with_suffix(".part")
        with tarfile.open(part, "w:gz") as archive:
            for file in made:
                if file.is_file() and file.stat().st_mtime >= self.began:
                    archive.add(file, file.relative_to(self.home))
            archive.add(self.out / f"campaign_{self.number}.txt", f".cache/campaign/campaign_{self.number}.txt")
        part.replace(path)
