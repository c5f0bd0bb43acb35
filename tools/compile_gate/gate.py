"""The compile gate itself: what ``tools.compile_kernels`` does once its command line is read."""

import argparse
import importlib
import json
import multiprocessing
import os
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import torch

import tape_ds.kernels
from tape_ds.arguments import below_one
from tape_ds.errors import Problem, did_you_mean, raise_if_any
from tape_ds.kernels.jit import INTERPRETED, SHARED_MEMORY, triton
from tools.compile_gate import calls, launches, machine_code
from tools.compile_gate.launches import Build

Maker = Callable[[torch.dtype], calls.Calls]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
COLUMNS = {
    "sm": 2,
    "dtype": 5,
    "launch": 12,
    "registers": 9,
    "spills": 6,
    "shared": 7,
    "mma": 4,
    "wgmma": 5,
    "seconds": 7,
}
"""Of the table beside the kernel's name, and how wide each is."""


class Built(NamedTuple):
    """What came out of the compiler."""

    code: machine_code.Code
    shared: int
    """Bytes of shared memory of one program."""
    products: int
    """Matrix products in the kernel's source."""
    off_tensor_cores: int
    """Those of them that were left to ordinary multiply-adds."""
    wgmma: int
    """Instructions of four warps together in PTX."""
    waits: int
    """For them, in PTX."""

    @property
    def serialised(self) -> bool:
        """Whether the assembler waits for wgmma instructions more often than PTX does; it may have unrolled a loop."""
        return self.code.count("WARPGROUP.DEPBAR") * self.wgmma > self.waits * self.code.count("HGMMA")


class Outcome(NamedTuple):
    """A build's figures, if there are any, and everything that is wrong with them."""

    build: Build
    built: Built | None
    faults: list[str]
    seconds: float = 0.0


def run(options: argparse.Namespace) -> int:
    """Check, collect, compile, print; the exit code."""
    builds, unreached = collect(options, check(options))
    print(f"Triton {triton.__version__}, {options.workers} processes, {len(builds)} kernels to compile")
    width = max(len(build.title) for build in builds)
    print(line(["kernel", *COLUMNS], width))
    begin, failed = time.perf_counter(), []
    for outcome in compile_all(builds, options.workers):
        print(line(row(outcome), width), flush=True)
        failed += [outcome] if outcome.faults else []
    seconds = time.perf_counter() - begin
    print(f"Triton {triton.__version__}: {len(builds)} kernels in {seconds:.0f} s, {len(failed)} failed")
    for build, _, faults, _ in failed:
        print(f"\nFAILED {build.title}, sm_{build.capability}, {build.dtype}, {build.launch}")
        print("\n".join(f"  {fault}" for fault in faults))
    print("\n".join(f"\nFAILED {each}: no call reaches it" for each in unreached))
    return 1 if failed or unreached else 0


def check(options: argparse.Namespace) -> list[Maker]:
    """Who makes the calls.

    Raises:
        UserError: no compiler, an unknown operator, an expression that is none.
    """
    if triton is None:
        raise_if_any([Problem("triton", None, "not installed", "pip install triton (Linux)")])
    problems = []
    makers = {name: maker(name) for name in options.kernels or calls.OPERATORS}
    if INTERPRETED:
        wrong = "Triton interprets its kernels and compiles none"
        remedy = "unset it: env -u TRITON_INTERPRET python -m tools.compile_kernels"
        problems.append(Problem("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET"), wrong, remedy))
    problems += below_one(options, "workers")
    try:
        re.compile(options.only)
    except re.error as error:
        wrong = f"no regular expression ({error})"
        problems.append(Problem("--only", options.only, wrong, "put a backslash before what stands for itself"))
    wrong = "neither an operator nor a module with calls(dtype)"
    unknown = [name for name, found in makers.items() if found is None]
    problems += [Problem("kernels", name, wrong, did_you_mean(name, calls.OPERATORS)) for name in unknown]
    raise_if_any(problems)
    return [found for found in makers.values() if found is not None]


def maker(name: str) -> Maker | None:
    """Who makes the calls of an operator, or of a module; None where there is no such thing."""
    if name in calls.OPERATORS:
        return calls.OPERATORS[name]
    try:
        return getattr(importlib.import_module(name), "calls", None)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # what the module itself imports is missing
            raise
        return None


def collect(options: argparse.Namespace, makers: list[Maker]) -> tuple[list[Build], list[str]]:
    """Return what there is to compile, and the kernels and rows of tables that no call reaches, of all or of named
    modules.

    Raises:
        UserError: nothing to compile.
    """
    package = tape_ds.kernels
    modules = [importlib.import_module(f"{package.__name__}.{x.name}") for x in pkgutil.iter_modules(package.__path__)]
    named = [importlib.import_module(name) for name in options.kernels or () if name not in calls.OPERATORS]
    asked, modules = modules if options.kernels is None else named, modules + named
    launches.run_on_meta(modules)
    tables = launches.watch(modules)
    builds: list[Build] = []
    for capability in options.capability:
        for dtype in options.dtype:
            with launches.gpu(recorder := launches.Recorder(capability, dtype)):
                for recorder.call, call in (each for make in makers for each in make(DTYPES[dtype])):
                    call()
            builds += recorder.builds.values()
    unreached = sorted(launches.entry_points(asked) - {build.kernel for build in builds})
    for name, table in tables.items():
        if name.partition(".")[0] in [module.__name__.rpartition(".")[2] for module in asked]:
            missed = sorted(row for row in table.keys() - table.reached if row[0] in options.capability)
            unreached += [f"{name}{list(row)}" for row in missed]
    builds = [build for build in builds if re.search(options.only, build.title)]
    if options.once:
        first: dict[Any, Build] = {}
        for build in builds:  # the same: a kernel with one launch, compile-time sizes and absent pointers
            params = getattr(importlib.import_module(build.module), build.kernel).params
            metadata = json.loads(build.data)
            constants = [
                (place, value)
                for (place, *_), value in zip(metadata["constant_keys"], metadata["constant_vals"], strict=True)
                if params[place].is_constexpr or value is None
            ]
            first.setdefault((build.module, build.kernel, build.capability, build.launch, *constants), build)
        builds = list(first.values())
    if not builds:
        raise_if_any([Problem("only", options.only, "nothing to compile", "name other kernels, calls or dtypes")])
    return builds, unreached if "bf16" in options.dtype else []


def compile_all(builds: list[Build], workers: int) -> Iterator[Outcome]:
    """Outcomes in the order of the builds.

    A compiler that dies takes its process along, and the whole pool: the first build without an outcome is then
    compiled alone, so that the kernel at fault is named, and the others in a new pool.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(sorted({build.module for build in builds}))
    while builds:
        ended = 0
        with ProcessPoolExecutor(min(workers, len(builds)), mp_context=context) as pool:
            try:
                for outcome in pool.map(attempt, builds):
                    yield outcome
                    ended += 1
            except BrokenProcessPool:
                with ProcessPoolExecutor(1, mp_context=context) as one:
                    try:
                        yield one.submit(attempt, builds[ended]).result()
                    except BrokenProcessPool:
                        wrong = "the compiler crashed and took its process along; see its words above"
                        yield Outcome(builds[ended], None, [wrong])
                ended += 1
        builds = builds[ended:]


def attempt(build: Build) -> Outcome:
    """Compile and judge; whatever the compiler raises is a fault to report, since its errors have no common class."""
    begin, built = time.perf_counter(), None
    try:
        triton.runtime.driver.set_active(launches.Driver(build.capability))
        done = getattr(importlib.import_module(build.module), build.kernel).preload(build.data)
        ptx, products = done.asm["ptx"], re.findall(r"tt\.dot .*-> (tensor<.*>)", done.asm["ttgir"])
        built = Built(
            code=machine_code.read(done.asm["cubin"]),
            shared=done.metadata.shared,
            products=done.asm["ttir"].count("tt.dot "),
            off_tensor_cores=sum("#blocked" in each for each in products),
            wgmma=ptx.count("wgmma.mma_async"),
            waits=ptx.count("wgmma.wait_group"),
        )
        faults = judge(built, build.capability)
    except Exception as error:
        faults = [f"does not compile: {type(error).__name__}: {error}"]
    return Outcome(build, built, faults, time.perf_counter() - begin)


def judge(built: Built, capability: int) -> list[str]:
    """Return everything that is wrong with a kernel."""
    faults = []
    inside, _ = built.code.spills()
    if inside:
        faults.append(f"spills {inside} times inside a loop: take smaller blocks or more warps")
    if built.shared > (limit := SHARED_MEMORY[capability]):
        faults.append(
            f"needs {built.shared:,} bytes of shared memory, {limit:,} is the most: fewer stages, smaller blocks"
        )
    if built.products and not built.code.count("HMMA") + built.code.count("HGMMA"):
        faults.append("has no tensor-core instruction")
    if built.off_tensor_cores:
        faults.append(f"leaves {built.off_tensor_cores} matrix products off the tensor cores")
    if built.serialised:
        waits = built.code.count("WARPGROUP.DEPBAR")
        faults.append(
            f"is serialised: {waits} waits for {built.code.count('HGMMA')} wgmma, {built.waits} were asked for"
        )
    return faults


def row(outcome: Outcome) -> list[str]:
    """Return the cells under the names of :data:`COLUMNS`."""
    build, built = outcome.build, outcome.built
    launch, failed = build.launch, " FAILED" * bool(outcome.faults)
    cells = [build.title, str(build.capability), build.dtype, "x".join(map(str, launch))]
    if built is None:
        return [*cells, *"-----", "-" + failed]
    code = built.code
    figures = (built.shared, code.count("HMMA"), code.count("HGMMA"))
    cells += [str(code.registers), "+".join(map(str, code.spills())), *(f"{each:,}" for each in figures)]
    return [*cells, f"{outcome.seconds:.1f}{failed}"]


def line(cells: list[str], width: int) -> str:
    """Cells in columns, the first ``width`` wide."""
    others = [cell.rjust(each) for cell, each in zip(cells[1:], COLUMNS.values(), strict=True)]
    return "  ".join([cells[0].ljust(width), *others])
