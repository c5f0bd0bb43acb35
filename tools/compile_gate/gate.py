"""Compile what the operators launch, count spills inside loops and shared memory, and report."""

import argparse
import importlib
import json
import multiprocessing
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tape_ds.arguments import below_one
from tape_ds.errors import Problem, did_you_mean, raise_if_any
from tape_ds.kernels.jit import INTERPRETED, SHARED_MEMORY, triton
from tools.compile_gate import calls, launches
from tools.compile_gate.launches import Build

Maker = Callable[[torch.dtype], calls.Calls]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);", re.MULTILINE
)
_JUMP = re.compile(r"0x([0-9a-f]+)")


class Outcome(NamedTuple):
    build: Build
    figures: str
    faults: list[str]


def run(options: argparse.Namespace) -> int:
    builds = collect(options, check(options))
    print(
        f"Triton {triton.__version__}, {options.workers} processes, {len(builds)} kernels to compile"
    )
    begin = time.perf_counter()
    failed = []
    for outcome in compile_all(builds, options.workers):
        build = outcome.build
        launch = f"sm_{build.capability} {build.dtype} {'x'.join(map(str, build.launch))}"
        line = f"{build.title}: {launch}; {outcome.figures}"
        if outcome.faults:
            line += " FAILED"
            failed.append(outcome)
        print(line, flush=True)

    seconds = time.perf_counter() - begin
    print(
        f"Triton {triton.__version__}: {len(builds)} kernels in {seconds:.0f} s, {len(failed)} failed"
    )
    for build, _, faults in failed:
        print(f"\nFAILED {build.title}, sm_{build.capability}, {build.dtype}, {build.launch}")
        print("\n".join(f"  {fault}" for fault in faults))
    if failed:
        return 1
    return 0


def check(options: argparse.Namespace) -> list[Maker]:
    """Return the functions that make the calls."""
    # without it, none of what follows can be looked up
    if triton is None:
        raise_if_any([Problem("triton", None, "not installed", "pip install triton (Linux)")])
    problems = below_one(options, "workers")
    makers: list[Maker] = []
    for name in options.kernels or calls.OPERATORS:
        try:
            makers.append(calls.OPERATORS.get(name) or importlib.import_module(name).calls)
        except (ModuleNotFoundError, AttributeError) as error:
            wrong = f"neither an operator nor a module with calls(dtype): {error}"
            problems.append(Problem("--kernels", name, wrong, did_you_mean(name, calls.OPERATORS)))
    if INTERPRETED:
        wrong = "Triton interprets its kernels and compiles none"
        remedy = "unset it: env -u TRITON_INTERPRET python -m tools.compile_kernels"
        problems.append(
            Problem("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET"), wrong, remedy)
        )
    try:
        re.compile(options.only)
    except re.error as error:
        wrong = f"not a regular expression ({error})"
        problems.append(
            Problem("--only", options.only, wrong, "put a backslash before literal characters")
        )
    raise_if_any(problems)
    return makers


def collect(options: argparse.Namespace, makers: list[Maker]) -> list[Build]:
    builds: list[Build] = []
    for capability in options.capability:
        for dtype in options.dtype:
            with launches.gpu(recorder := launches.Recorder(capability, dtype)):
                for make in makers:
                    for recorder.call, call in make(DTYPES[dtype]):
                        call()
            builds += recorder.builds.values()
    builds = [build for build in builds if re.search(options.only, build.title)]

    if options.once:
        first: dict[Any, Build] = {}
        # the same: a kernel with one launch, compile-time sizes and absent pointers
        for build in builds:
            key = (build.module, build.kernel, build.capability, build.launch, *_constants(build))
            first.setdefault(key, build)
        builds = list(first.values())
    if not builds:
        raise_if_any(
            [
                Problem(
                    "--only",
                    options.only,
                    "nothing to compile",
                    "name other kernels, calls or dtypes",
                )
            ]
        )
    return builds


def _constants(build: Build) -> Iterator[tuple[int, Any]]:
    """Yield the compile-time sizes of a kernel and its absent pointers, by their places."""
    params = getattr(importlib.import_module(build.module), build.kernel).params
    metadata = json.loads(build.data)
    values = zip(metadata["constant_keys"], metadata["constant_vals"], strict=True)
    for (place, *_), value in values:
        # other constants are 1 and multiples of 16, which change with the call's sizes
        if params[place].is_constexpr or value is None:
            yield place, value


def compile_all(builds: list[Build], workers: int) -> Iterator[Outcome]:
    """Yield the outcomes in the order of the builds."""
    # a fork of this process would have its patched torch; a spawned one would import for seconds each
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(sorted({build.module for build in builds}))
    done = 0
    while done < len(builds):
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            try:
                for outcome in pool.map(attempt, builds[done:]):
                    yield outcome
                    done += 1
            except BrokenProcessPool:
                # a crash of the compiler ends the whole pool, and only in a pool of one is its kernel known
                if workers == 1:
                    yield Outcome(
                        builds[done], "not compiled", ["the compiler crashed; see its output above"]
                    )
                    done += 1
                workers = 1


def attempt(build: Build) -> Outcome:
    """Compile a kernel and return what is wrong with it."""
    begin = time.perf_counter()
    try:
        triton.runtime.driver.set_active(launches.driver(build.capability))
        compiled = getattr(importlib.import_module(build.module), build.kernel).preload(build.data)
        with tempfile.TemporaryDirectory() as folder:
            binary = Path(folder) / "kernel.cubin"
            binary.write_bytes(compiled.asm["cubin"])
            shown = [triton.knobs.nvidia.cuobjdump.path, "-sass", str(binary)]
            spills = spills_in_loops(
                subprocess.run(shown, capture_output=True, text=True, check=True).stdout
            )
    except Exception as error:
        # the compiler's errors have no common class
        return Outcome(
            build, "not compiled", [f"does not compile: {type(error).__name__}: {error}"]
        )

    shared = compiled.metadata.shared
    limit = SHARED_MEMORY[build.capability]
    faults = []
    if spills:
        faults.append(f"spills {spills} times inside a loop: take smaller blocks or more warps")
    if shared > limit:
        faults.append(
            f"needs {shared:,} bytes of shared memory, {limit:,} is the most: fewer stages, smaller blocks"
        )
    return Outcome(
        build, f"spills {spills}, shared {shared:,}; {time.perf_counter() - begin:.1f} s", faults
    )


def spills_in_loops(machine_code: str) -> int:
    """Count the instructions that move a spilled register inside a loop, in cuobjdump's text."""
    instructions = _INSTRUCTION.findall(machine_code)
    places = {int(address, 16): place for place, (address, *_) in enumerate(instructions)}

    # a loop is what leads back to itself: not every jump backwards is one, since the assembler moves blocks to the end
    ways = []
    for place, (_, predicate, name, operands) in enumerate(instructions):
        ends = name.startswith(("EXIT", "RET", "BRA")) and not predicate
        if not ends and place + 1 < len(instructions):
            ways.append((place, place + 1))
        if name.startswith("BRA") and (jumped := _JUMP.search(operands)):
            ways.append((place, places[int(jumped[1], 16)]))
    starts, targets = zip(*ways, strict=True)
    graph = coo_array(
        ([1] * len(ways), (starts, targets)), shape=(len(instructions), len(instructions))
    )
    _, component = connected_components(graph, connection="strong")
    sizes = Counter(component)
    spills = 0
    for place, (_, _, name, _) in enumerate(instructions):
        # stores and loads of local memory; a component of one instruction is no loop
        if name.startswith(("STL", "LDL")) and sizes[component[place]] > 1:
            spills += 1
    return spills
