"""Triton's cache for a machine with a GPU, filled on one without: what was compiled there need not be compiled here."""

import argparse
import gzip
import importlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tape_ds.installation import ROOT
from tape_ds.kernels.jit import triton
from tools.compile_gate import gate
from tools.compile_gate.launches import Build, Driver

WORK = ROOT / ".cache" / "compiled"
"""Everything stays here: a second time only what has changed is compiled."""


def fill(folder: Path, modules: Sequence[str], capability: int) -> None:
    """Compile what these modules' ``calls`` launch; keep of each the machine code and what Triton has to know of it.

    The files are compressed, and of use with the same Triton and Python alone.
    """
    WORK.mkdir(parents=True, exist_ok=True)
    os.environ |= {"TRITON_CACHE_DIR": str(WORK), "TRITON_LIBCUDA_PATH": str(WORK)}
    driver = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", f"{WORK}/libcuda.so.1", "-x", "c", os.devnull]
    subprocess.run([os.environ.get("CC", "gcc"), *driver], check=True)  # a name for launchers to be linked with
    options = argparse.Namespace(kernels=list(modules), capability=[capability], dtype=["bf16"], only="", once=False)
    options.workers = os.cpu_count() or 1
    builds, _ = gate.collect(options, gate.check(options))
    print(f"{len(builds)} kernels to compile", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    for outcome in gate.compile_all(builds, options.workers):
        if outcome.faults:
            print(f"{outcome.build.title}, {outcome.build.launch}: {'; '.join(outcome.faults)}", flush=True)
        for path in () if outcome.built is None else finished(outcome.build):
            target = folder / path.parent.name / f"{path.name}.gz"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(gzip.compress(path.read_bytes()))


def finished(build: Build) -> list[Path]:
    """Compile the C code that launches a kernel from Python, too; return all that the cache has to hold for a launch.

    That code cannot be loaded without a driver, so it is only built.
    """
    from triton.backends.nvidia import driver
    from triton.runtime import build as compiler

    found: list[Path] = []

    def load(name: str, path: str) -> mock.MagicMock:
        found.append(Path(path))
        return mock.MagicMock()

    stand_in: Any = Driver(build.capability)
    stand_in.utils = mock.MagicMock()  # newer Triton has one launcher for all kernels there
    triton.runtime.driver.set_active(stand_in)
    done = getattr(importlib.import_module(build.module), build.kernel).preload(build.data)
    with mock.patch.object(compiler, "_load_module_from_path", load):
        driver.CudaUtils.__init__(mock.MagicMock())  # Triton's own part, the same for all kernels
        driver.CudaLauncher(done.src, done.metadata)
    found += [Path(path) for path in done.metadata_group.values() if path.endswith((".cubin", ".json"))]
    return [*found, *found[-1].parent.glob("__grp__*")]


def unpack(folder: Path, cache: Path) -> int:
    """Put the files where Triton looks for them when ``TRITON_CACHE_DIR`` is ``cache``; return how many kernels."""
    for path in folder.glob("*/*.gz"):
        target = cache / path.parent.name / path.stem
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.decompress(path.read_bytes()))
        if target.name.startswith("__grp__"):  # names files by where they were written
            names = [Path(each).name for each in json.loads(target.read_text())["child_paths"].values()]
            there = {name: str(target.with_name(name)) for name in names if path.with_name(f"{name}.gz").exists()}
            target.write_text(json.dumps({"child_paths": there}))
    return len(list(folder.glob("*/*.cubin.gz")))
