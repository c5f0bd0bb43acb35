"""Measure everything on a GPU in stages: for a machine that is lent for minutes and gives one folder back.

    python3.12 -m benchmarks collect --out .carried                    here: wheels that such a machine lacks
    python -m benchmarks campaign --part 1 --carried .carried          there; then parts 2, 3 and 4
    python -m benchmarks campaign --part 1 --rehearse                  every stage in small, on a CPU
    python -m benchmarks choose --results FOLDER                       here: take in the folder that came back

Each stage is a process group with a limit; time that it does not use is left to the next ones. A stage that fails or is
late never stops the next. ``campaign_PART.jsonl`` gets each row when it is known, and a line after each stage;
``campaign_PART.tar.gz`` holds the logs, written again after each stage.

Exit codes: 0 every stage is done; 1 one failed or was late; 2 invalid options, nothing started.
"""

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import table
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, check_folder, raise_if_any
from tape_ds.installation import ROOT, environment
from tape_ds.results import now

# Needs beyond an image with torch, transformers, accelerate and peft: of every command, and of a launcher
WHEELS = ["pydantic", "pydantic-core", "annotated-types", "typing-inspection"]
WHEELS += ["deepspeed", "hjson", "msgpack", "ninja", "py-cpuinfo", "einops", "liger-kernel"]
WHEELS += ["datasets", "dill", "multiprocess", "xxhash", "gguf"]
WORK = ROOT / ".cache"
# seconds at the end of a stage's limit in which it may stop by itself, and print where it was
GRACE = 3
# factor of all limits in a rehearsal
REHEARSAL = 4
# bytes that are kept of a log: its end
LOGGED = 1 << 20
DONE = "done"
FAILED = "failed"
LATE = "late"


class Stage(NamedTuple):
    part: int
    name: str
    seconds: int
    words: str
    """The command, of this Python if it begins with ``-``. ``{rows}``, ``{work}``, ``{device}`` and ``{toys}`` are
    filled in."""
    toy: str | None = None
    """The command of a rehearsal, if it differs."""


_GROUPS = "--device {device} --out {rows} {toys}"
_SANITIZED = (
    "-m benchmarks attention decode position_mix rotate --toys --only 'triton|ours' --repeats 1"
)
_PROFILED = "-m benchmarks attention --shapes 'B1 H32 G32' --only triton --repeats 1 --device cuda --out {work}/profile"
_KERNELS = "--clock-control none --set full --kernel-name 'regex:^(forward|values|keys)_kernel' --launch-count 6"
_TESTS = "-m pytest -v -n auto --tb=short -rf -m 'not slow' -p no:cacheprovider -o faulthandler_timeout=40"
_GPU_TESTS = f"{_TESTS.replace('not slow', 'gpu')} --ignore=tests/kernels"
_TESTED = [
    "tests/kernels/test_tape_attention.py",
    "tests/kernels/test_position_mix.py",
    "tests/kernels/test_rotate.py",
    "tests/kernels/test_decode_attention.py",
]
STAGES = (
    Stage(1, "machine", 20, "-m benchmarks.machine --device {device} --out {rows}"),
    Stage(1, "smoke", 60, f"-m benchmarks smoke {_GROUPS}"),
    Stage(1, "kernels", 90, f"{_TESTS} {' '.join(_TESTED)}", f"{_TESTS} {_TESTED[-1]}"),
    Stage(1, "attention", 150, f"-m benchmarks attention --shapes 'H32 G32 T8192 K128' {_GROUPS}"),
    Stage(1, "recipe", 110, f"-m benchmarks recipe {_GROUPS}"),
    Stage(1, "deepspeed", 110, "-m benchmarks.train --work {work} --out {rows} {toys}"),
    # without its cache, the allocator cannot let an overrun end in another tensor's block
    Stage(
        2,
        "memcheck",
        100,
        "env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 3 "
        f"python {_SANITIZED} --device cuda --out {{work}}/checked",
    ),
    Stage(2, "gpu tests", 120, f"{_GPU_TESTS} tests", f"{_GPU_TESTS} --collect-only tests"),
    Stage(
        2, "grouped queries and K 64", 160, f"-m benchmarks attention --shapes 'G8|K64' {_GROUPS}"
    ),
    Stage(2, "decode", 40, f"-m benchmarks decode {_GROUPS}"),
    Stage(2, "position_mix and rotate", 70, f"-m benchmarks position_mix rotate {_GROUPS}"),
    Stage(3, "encodings", 160, f"-m benchmarks encodings {_GROUPS}"),
    Stage(3, "launches", 360, f"-m benchmarks launches {_GROUPS}"),
    Stage(4, "profile", 170, f"ncu {_KERNELS} python {_PROFILED}"),
)
PARTS = sorted({stage.part for stage in STAGES})


def collect(argv: Sequence[str]) -> int:
    """Get the wheels. Run it with the machine's version of Python."""
    parser = Parser(prog="python -m benchmarks collect", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / ".carried", help="folder to fill; default: %(default)s"
    )
    options = parser.parse_args(argv)
    raise_if_any(check_folder("--out", options.out))
    pins = dict(
        re.findall(r"^([\w-]+)(==[\w.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    )
    names = [name + pins.get(name, "") for name in WHEELS]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(options.out),
        *names,
    ]
    # a package that is only source is built, without its compiled parts
    if subprocess.run(pip, env=os.environ | {"DS_BUILD_OPS": "0"}).returncode != 0:
        reason = "pip could not get them"
        raise UserError(Problem("wheels", " ".join(names), reason, "see pip's messages"))
    print(f"{options.out}: {len(list(options.out.glob('*.whl')))} wheels")
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks campaign", description=__doc__)
    out = Path(os.environ.get("OUT") or "runs/campaign")
    parser.add_argument(
        "--part", type=int, choices=PARTS, help="nine minutes each; default: all of them"
    )
    parser.add_argument(
        "--out", type=Path, default=out, help="of rows and logs; default: $OUT, else %(default)s"
    )
    parser.add_argument("--carried", type=Path, help="folder of python -m benchmarks collect")
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help=f"in small on a CPU, with {REHEARSAL} times the limits",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    problems = check_folder("--out", options.out)
    if options.carried is not None and not options.carried.is_dir():
        remedy = "name an existing one, or leave it out"
        problems.append(Problem("--carried", str(options.carried), "no such folder", remedy))
    if not options.rehearse and not torch.cuda.is_available():
        remedy = "give --rehearse to try the stages"
        problems.append(Problem("--rehearse", False, "torch sees no CUDA device", remedy))
    raise_if_any(problems)

    # a stage must not outlive it
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    ends: list[str] = []
    try:
        for number in PARTS:
            if options.part in (None, number):
                ends += Part(number, options).run()
    finally:
        signal.signal(signal.SIGTERM, before)
    if {FAILED, LATE} & set(ends):
        return 1
    return 0


class Part:
    def __init__(self, number: int, options: argparse.Namespace):
        self.number = number
        self.rehearse = options.rehearse
        self.out = options.out.resolve()
        self.slower = 1
        self.work = WORK / "campaign"
        if self.rehearse:
            self.slower = REHEARSAL
            self.work = WORK / "rehearsal"
        self.rows = self.out / f"campaign_{number}.jsonl"
        self.logs = self.work / f"logs_{number}"
        self.site = self.work / "site"
        # the packages may be another Python's
        for former in (self.logs, self.site):
            shutil.rmtree(former, ignore_errors=True)
        for folder in (self.out, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        wheels: list[str] = []
        if options.carried is not None:
            wheels = sorted(map(str, options.carried.glob("*.whl")))
        if wheels:
            pip = [
                "pip",
                "install",
                "--quiet",
                "--no-index",
                "--no-deps",
                "--no-compile",
                "--target",
                str(self.site),
            ]
            installed = subprocess.run(
                [sys.executable, "-m", *pip, *wheels], capture_output=True, text=True
            )
            names = [Path(wheel).name for wheel in wheels]
            table.append({"carried": {"wheels": names, "pip": installed.stderr[-500:]}}, self.rows)

    def run(self) -> list[str]:
        """Run stage after stage, write each one's line and the archive at once; return how each ended."""
        ends = []
        # until when a stage may run: the sum of all limits so far
        allowed = time.time()
        for stage in STAGES:
            if stage.part != self.number:
                continue
            began = time.time()
            limit = stage.seconds * self.slower
            allowed += limit
            end, why = self.run_stage(stage, allowed - began)
            line = {
                "stage": stage.name,
                "end": end,
                "seconds": round(time.time() - began, 1),
                "limit": limit,
            }
            table.append(line | {"why": why, "at": now()}, self.rows)
            print(
                f"part {self.number} {end:<7} {stage.name}, {line['seconds']} of {limit} s: {why}",
                flush=True,
            )
            ends.append(end)

            # built elsewhere, then moved: the folder may be taken away at any moment
            archived = self.work / f"campaign_{self.number}.tar.gz"
            with tarfile.open(archived, "w:gz") as archive:
                for log in sorted(self.logs.iterdir()):
                    if log.stat().st_size > LOGGED:
                        log.write_bytes(log.read_bytes()[-LOGGED:])
                    archive.add(log, log.name)
            shutil.move(archived, self.out / archived.name)
        return ends

    def run_stage(self, stage: Stage, seconds: float) -> tuple[str, str]:
        """Return how a stage ended, and the last line that it printed."""
        variables = environment() | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        # other stages use the packages that the machine had
        if stage.name in ("deepspeed", "gpu tests"):
            variables["PYTHONPATH"] += os.pathsep + str(self.site)
        if self.rehearse:
            variables |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
            # compiling would take longer than all else
            if stage.name != "kernels":
                variables["TORCH_COMPILE_DISABLE"] = "1"
        log = self.logs / f"{stage.name.replace(' ', '_')}.log"
        late = False
        with open(log, "wb") as file:
            # in a new session, so that all its children can be ended together
            try:
                process = subprocess.Popen(
                    self.command(stage),
                    cwd=ROOT,
                    env=variables,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                return FAILED, f"{error.filename} is not installed"
        try:
            code = process.wait(seconds - GRACE)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        finally:
            # its children too: a launcher's workers hold the GPU's memory
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1][:200] if lines else ""
        if late:
            return LATE, f"ended after {seconds:.0f} s; {last}"
        if code == 0:
            return (DONE, last)
        return (FAILED, f"exit code {code}; {last}")

    def command(self, stage: Stage) -> list[str]:
        text = stage.words
        device = "cuda"
        toys = ""
        if self.rehearse:
            text = stage.toy or stage.words
            device = "cpu"
            toys = "--toys"
        if text.startswith("-"):
            text = f"python {text}"
        # folders may have blanks in their names
        rows = shlex.quote(str(self.rows))
        work = shlex.quote(str(self.work))
        words = shlex.split(text.format(rows=rows, work=work, device=device, toys=toys))
        return [sys.executable if word == "python" else word for word in words]
