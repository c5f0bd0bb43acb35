"""Compile every Triton kernel without a GPU, and refuse what would run slowly or not at all.

    python -m tools.compile_kernels                                     every kernel file, sm_80, sm_90, bf16, fp16
    python -m tools.compile_kernels --kernels rotate --capability 90    one file of tape_ds/kernels, one kind of GPU
    python -m tools.compile_kernels --kernels my.module                 any module with ``specimens(capability, dtype)``

Each row says what the compiler made of one kernel with one launch of its static table. It is a failure, listed again at
the end and by exit code 1, if registers spill to the stack, if a program needs more shared memory than the GPU has, if
a matrix product is left off the tensor cores, or if it does not compile.

"spill" is the stack frame that the assembler gave the finished code, read from that code: every spilled register has
its place there, and these kernels have nothing else to keep on a stack. Triton's cache (TRITON_CACHE_DIR) is used: it
keeps the finished code, so a second run reads the same figures sooner.
"""

import argparse
import functools
import importlib
import importlib.util
import multiprocessing
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import tape_ds.kernels
from tape_ds.errors import Problem, command, did_you_mean, raise_if_any
from tape_ds.kernels.jit import INTERPRETED, SHARED_MEMORY, triton
from tape_ds.kernels.launch import Specimen

DTYPES = ("bf16", "fp16")
WARP = 32
COLUMNS = {"sm": 2, "dtype": 5, "blocks": 8, "warps": 5, "stages": 6, "registers": 9, "spill": 6, "shared": 8}
COLUMNS |= {"mma": 5, "wgmma": 5, "seconds": 7}
"""Of the table beside the kernel's name, and how wide each is."""


class Job(NamedTuple):
    """One specimen, by its place: compiled kernels and their sources do not travel between processes."""

    module: str
    capability: int
    dtype: str
    place: int


class Built(NamedTuple):
    """What came out of the compiler."""

    registers: int
    """Of one thread."""
    spill: int
    """Bytes of stack of one thread."""
    shared: int
    """Bytes of shared memory of one program."""
    mma: int
    """Tensor-core instructions in the PTX of the kind that a warp issues."""
    wgmma: int
    """Those that a group of four warps issues, sm_90's own."""
    off_tensor_cores: int
    """Matrix products that were left to ordinary multiply-adds."""


class Outcome(NamedTuple):
    """A job's figures, if there are any, and everything that is wrong with them."""

    job: Job
    built: Built | None
    faults: list[str]
    seconds: float = 0.0


@command
def main(argv: list[str] | None = None) -> int:
    """Parse, check, compile, print."""
    options = parse(argv)
    jobs = check(options)
    print(f"Triton {triton.__version__}, {options.workers} processes, {len(jobs)} kernels to compile")
    width = max(len(title(job)) for job in jobs)
    print(line(["kernel", *COLUMNS], width))
    begin, failed = time.perf_counter(), []
    for outcome in compile_all(jobs, options.workers):
        print(line(row(outcome), width), flush=True)
        failed += [outcome] if outcome.faults else []
    print(
        f"Triton {triton.__version__}: {len(jobs)} kernels in {time.perf_counter() - begin:.0f} s, {len(failed)} failed"
    )
    for outcome in failed:
        job = outcome.job
        print(f"\nFAILED {title(job)}, sm_{job.capability}, {job.dtype}, {specimen(job).launch}")
        print("\n".join(f"  {fault}" for fault in outcome.faults))
    return 1 if failed else 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    capabilities, workers = sorted(SHARED_MEMORY), min(8, os.cpu_count() or 1)
    parser.add_argument("--capability", type=int, nargs="+", choices=capabilities, default=capabilities)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument(
        "--kernels", nargs="+", metavar="NAME", help="files of tape_ds/kernels, or modules; default: all"
    )
    parser.add_argument("--workers", type=int, default=workers, help=f"processes, here {workers}")
    return parser.parse_args(argv)


def check(options: argparse.Namespace) -> list[Job]:
    """What there is to compile.

    Raises:
        UserError: no compiler, an unknown kernel file, nothing to compile.
    """
    if triton is None:
        raise_if_any([Problem("triton", None, "not installed", "pip install triton (Linux)")])
    problems = []
    if INTERPRETED:
        wrong = "Triton interprets its kernels and compiles none"
        remedy = "unset it: env -u TRITON_INTERPRET python -m tools.compile_kernels"
        problems.append(Problem("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET"), wrong, remedy))
    if options.workers < 1:
        problems.append(Problem("workers", options.workers, "too few", "give 1 or more"))
    known = kernel_files()
    modules = [known.get(name, name) for name in options.kernels or known]
    for name in modules:
        if not has_specimens(name):
            wrong = "neither a kernel file nor a module with specimens(capability, dtype)"
            problems.append(Problem("kernels", name, wrong, did_you_mean(name, known)))
    raise_if_any(problems)
    wanted = [(each, cap, dtype) for each in modules for cap in options.capability for dtype in options.dtype]
    jobs = [Job(*each, place) for each in wanted for place in range(len(specimens(*each)))]
    if not jobs:
        remedy = "name other kernels, capabilities or dtypes"
        raise_if_any([Problem("kernels", modules, "nothing to compile", remedy)])
    return jobs


def kernel_files() -> dict[str, str]:
    """Name and module of every file of ``tape_ds/kernels`` that has specimens of its own."""
    found = [f"{tape_ds.kernels.__name__}.{each.name}" for each in pkgutil.iter_modules(tape_ds.kernels.__path__)]
    return {name.rpartition(".")[2]: name for name in found if has_specimens(name)}


def has_specimens(module: str) -> bool:
    """Whether there is such a module, and ``specimens`` is defined in it, not imported into it."""
    top = module.partition(".")[0]
    if importlib.util.find_spec(top) is None or importlib.util.find_spec(module) is None:
        return False
    return getattr(getattr(importlib.import_module(module), "specimens", None), "__module__", None) == module


@functools.cache
def specimens(module: str, capability: int, dtype: str) -> tuple[Specimen, ...]:
    """Those of one kernel file."""
    return tuple(importlib.import_module(module).specimens(capability, dtype))


def specimen(job: Job) -> Specimen:
    """The one that a job means."""
    return specimens(job.module, job.capability, job.dtype)[job.place]


def compile_all(jobs: list[Job], workers: int) -> Iterator[Outcome]:
    """Outcomes in the order of the jobs.

    A compiler that dies takes its process along, and the whole pool: the first job without an outcome is then compiled
    alone, so that the kernel at fault is named, and the others in a new pool.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(sorted({job.module for job in jobs}))
    while jobs:
        ended = 0
        with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context) as pool:
            try:
                for outcome in pool.map(attempt, jobs):
                    yield outcome
                    ended += 1
            except BrokenProcessPool:
                yield alone(jobs[ended], context)
                ended += 1
        jobs = jobs[ended:]


def alone(job: Job, context: multiprocessing.context.ForkServerContext) -> Outcome:
    """One job in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(attempt, job).result()
        except BrokenProcessPool:
            return Outcome(job, None, ["the compiler crashed and took its process along; see its words above"])


def attempt(job: Job) -> Outcome:
    """Compile and judge; whatever the compiler raises is a fault to report, since its errors have no common class."""
    begin, built = time.perf_counter(), None
    try:
        one = specimen(job)
        built = build(one, job.capability)
        faults = judge(built, one, job.capability)
    except Exception as error:
        faults = [f"does not compile: {type(error).__name__}: {error}"]
    return Outcome(job, built, faults, time.perf_counter() - begin)


def build(one: Specimen, capability: int) -> Built:
    """Compile one specimen for ``sm_<capability>``.

    Raises:
        ValueError: the specimen does not name exactly the kernel's arguments.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = one.kernel.arg_names
    if wrong := (set(names) ^ (set(one.signature) | set(one.constexprs))) | (set(one.divisible) - set(one.signature)):
        raise ValueError(f"specimen and kernel do not agree on the arguments {', '.join(sorted(wrong))}")
    source = ASTSource(
        fn=one.kernel,
        signature={name: "constexpr" if name in one.constexprs else one.signature[name] for name in names},
        constexprs={(names.index(name),): value for name, value in one.constexprs.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in one.divisible},
    )
    done = triton.compile(source, target=GPUTarget("cuda", capability, WARP), options=one.launch.options)
    ptx, products = done.asm["ptx"], re.findall(r"tt\.dot .*-> (tensor<.*>)", done.asm["ttgir"])
    registers, spill = usage(done.asm["cubin"])
    return Built(
        registers=registers,
        spill=spill,
        shared=done.metadata.shared,
        mma=ptx.count("mma.sync"),
        wgmma=ptx.count("wgmma.mma_async"),
        off_tensor_cores=sum("#blocked" in each for each in products),
    )


def usage(binary: bytes) -> tuple[int, int]:
    """Registers and bytes of stack (ptxas counts local memory apart) of one thread of a finished kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary)
        shown = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        text = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    figures = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    return figures["REG"], figures["STACK"] + figures["LOCAL"]


def judge(built: Built, one: Specimen, capability: int) -> list[str]:
    """Everything that is wrong with a kernel."""
    faults = []
    if built.spill:
        faults.append(f"spills: {built.spill} bytes of stack; take smaller blocks or more warps")
    if built.shared > (limit := SHARED_MEMORY[capability]):
        faults.append(
            f"needs {built.shared:,} bytes of shared memory, {limit:,} is the most: fewer stages, smaller blocks"
        )
    if one.multiplies and not built.mma + built.wgmma:
        faults.append("has no tensor-core instruction")
    if built.off_tensor_cores:
        faults.append(f"leaves {built.off_tensor_cores} matrix products off the tensor cores")
    return faults


def title(job: Job) -> str:
    """File and name of a specimen."""
    return f"{job.module.rpartition('.')[2]}: {specimen(job).name}"


def row(outcome: Outcome) -> list[str]:
    """The cells under :data:`HEADER`."""
    job, launch = outcome.job, specimen(outcome.job).launch
    cells = [title(job), str(job.capability), job.dtype, f"{launch.rows}x{launch.columns}"]
    cells += [str(launch.warps), str(launch.stages)]
    if outcome.built is None:
        return [*cells, *"-----", "FAILED"]
    cells += [f"{value:,}" for value in outcome.built[:5]]
    return [*cells, f"{outcome.seconds:.1f}" + " FAILED" * bool(outcome.faults)]


def line(cells: list[str], width: int) -> str:
    """Cells in columns, the first ``width`` wide."""
    others = [cell.rjust(each) for cell, each in zip(cells[1:], COLUMNS.values(), strict=True)]
    return "  ".join([cells[0].ljust(width), *others])


if __name__ == "__main__":
    sys.exit(main())
