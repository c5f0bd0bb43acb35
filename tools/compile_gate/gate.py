"""The compile gate behind ``tools.compile_kernels``: collect the kernels, compile and judge them, report."""

import argparse
import importlib
import itertools
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


class Built(NamedTuple):
    code: machine_code.Code
    shared: int  # bytes of shared memory of one program
    products: int  # matrix products in the source
    off_tensor_cores: int  # products as ordinary multiply-adds
    wgmma: int  # instructions in PTX
    waits: int  # for wgmma, in PTX


class Outcome(NamedTuple):
    build: Build
    built: Built | None
    faults: list[str]
    seconds: float = 0.0


def run(options: argparse.Namespace) -> int:
    builds, unreached = collect(options, check(options))
    print(f"Triton {triton.__version__}, {options.workers} processes, {len(builds)} kernels to compile")
    begin, failed = time.perf_counter(), []
    for outcome in compile_all(builds, options.workers):
        build, built, faults, seconds = outcome
        figures = "not compiled"
        if built is not None:
            code, spills = built.code, "+".join(map(str, built.code.spills()))
            products = f"mma {code.count('HMMA')}, wgmma {code.count('HGMMA')}"
            figures = f"registers {code.registers}, spills {spills}, shared {built.shared:,}, {products}"
        launch = f"sm_{build.capability} {build.dtype} {'x'.join(map(str, build.launch))}"
        print(f"{build.title}: {launch}; {figures}; {seconds:.1f} s{' FAILED' * bool(faults)}", flush=True)
        failed += [outcome] if faults else []
    seconds = time.perf_counter() - begin
    print(f"Triton {triton.__version__}: {len(builds)} kernels in {seconds:.0f} s, {len(failed)} failed")
    for build, _, faults, _ in failed:
        print(f"\nFAILED {build.title}, sm_{build.capability}, {build.dtype}, {build.launch}")
        print("\n".join(f"  {fault}" for fault in faults))
    print("\n".join(f"\nFAILED {each}: no call reaches it" for each in unreached))
    return 1 if failed or unreached else 0


def check(options: argparse.Namespace) -> list[Maker]:
    """Return the functions that make the calls."""
    if triton is None:
        raise_if_any([Problem("triton", None, "not installed", "pip install triton (Linux)")])
    problems = []
    makers: dict[str, Maker | None] = dict(calls.OPERATORS)
    for name in [name for name in options.kernels or () if name not in makers]:
        try:
            makers[name] = getattr(importlib.import_module(name), "calls", None)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # an import of the module itself is missing
                raise
            makers[name] = None
    makers = {name: makers[name] for name in options.kernels or calls.OPERATORS}
    if INTERPRETED:
        wrong = "Triton interprets its kernels and compiles none"
        remedy = "unset it: env -u TRITON_INTERPRET python -m tools.compile_kernels"
        problems.append(Problem("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET"), wrong, remedy))
    problems += below_one(options, "workers")
    try:
        re.compile(options.only)
    except re.error as error:
        wrong = f"not a regular expression ({error})"
        problems.append(Problem("--only", options.only, wrong, "put a backslash before literal characters"))
    wrong = "neither an operator nor a module with calls(dtype)"
    unknown = [name for name, maker in makers.items() if maker is None]
    problems += [Problem("kernels", name, wrong, did_you_mean(name, calls.OPERATORS)) for name in unknown]
    raise_if_any(problems)
    return [maker for maker in makers.values() if maker is not None]


def collect(options: argparse.Namespace, makers: list[Maker]) -> tuple[list[Build], list[str]]:
    """Return the builds, and the kernels and table rows of all or of the named modules that no call reaches."""
    package = tape_ds.kernels
    modules = [importlib.import_module(f"{package.__name__}.{x.name}") for x in pkgutil.iter_modules(package.__path__)]
    named = [importlib.import_module(name) for name in options.kernels or () if name not in calls.OPERATORS]
    asked, modules = modules if options.kernels is None else named, modules + named
    tables = launches.watch(modules)
    builds: list[Build] = []
    for capability in options.capability:
        for dtype in options.dtype:
            with launches.gpu(recorder := launches.Recorder(capability, dtype)):
                for recorder.call, call in itertools.chain.from_iterable(make(DTYPES[dtype]) for make in makers):
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
    """Yield the outcomes in the order of the builds."""
    # A compiler that crashes ends the whole pool: the first build without an outcome is then compiled alone, so that
    # the kernel at fault is named, and the others in a new pool.
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
                        wrong = "the compiler crashed; see its output above"
                        yield Outcome(builds[ended], None, [wrong])
                ended += 1
        builds = builds[ended:]


def attempt(build: Build) -> Outcome:
    begin, built = time.perf_counter(), None
    try:
        triton.runtime.driver.set_active(launches.driver(build.capability))
        done = getattr(importlib.import_module(build.module), build.kernel).preload(build.data)
        ptx, products = done.asm["ptx"], re.findall(r"tt\.dot .*-> (tensor<.*>)", done.asm["ttgir"])
        built = Built(
            code=machine_code.read(done.asm["cubin"]),
            shared=done.metadata.shared,
            products=done.asm["ttir"].count("tt.dot "),
            off_tensor_cores=sum("#blocked" in product for product in products),
            wgmma=ptx.count("wgmma.mma_async"),
            waits=ptx.count("wgmma.wait_group"),
        )
        faults = judge(built, build.capability)
    except Exception as error:  # the compiler's errors have no common class
        faults = [f"does not compile: {type(error).__name__}: {error}"]
    return Outcome(build, built, faults, time.perf_counter() - begin)


def judge(built: Built, capability: int) -> list[str]:
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
    # more waits for each wgmma than in PTX; the assembler may have unrolled a loop
    waits, wgmma = built.code.count("WARPGROUP.DEPBAR"), built.code.count("HGMMA")
    if waits * built.wgmma > built.waits * wgmma:
        faults.append(f"is serialised: {waits} waits for {wgmma} wgmma, {built.waits} were asked for")
    return faults
