"""Triton's cache for a machine with a GPU, filled on one without."""

import argparse
import gzip
import importlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from tape_ds.installation import ROOT
from tape_ds.kernels.jit import triton
from tools.compile_gate import gate
from tools.compile_gate.launches import Build, driver

WORK = ROOT / ".cache" / "compiled"  # kept, so that only changed kernels are compiled again


def fill(folder: Path, modules: Sequence[str], capability: int) -> None:
    """Compile the kernels of these modules' ``calls`` into compressed files for the same Triton and Python."""
    WORK.mkdir(parents=True, exist_ok=True)
    os.environ |= {"TRITON_CACHE_DIR": str(WORK), "TRITON_LIBCUDA_PATH": str(WORK)}
    driver = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", f"{WORK}/libcuda.so.1", "-x", "c", os.devnull]
    subprocess.run([os.environ.get("CC", "gcc"), *driver], check=True)  # for launchers to be linked with
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
    """Compile also the C code that launches a kernel from Python; return all files that a launch needs.

    Without a driver that code is built but not loaded.
    """
    files: list[Path] = []

    def load(name: str, path: str) -> mock.MagicMock:
        files.append(Path(path))
        return mock.MagicMock()

    nvidia, compiler = map(importlib.import_module, ("triton.backends.nvidia.driver", "triton.runtime.build"))
    stub = driver(build.capability)
    stub.utils = mock.MagicMock()  # with newer Triton's launcher for all kernels
    triton.runtime.driver.set_active(stub)
    done = getattr(importlib.import_module(build.module), build.kernel).preload(build.data)
    with mock.patch.object(compiler, "_load_module_from_path", load):
        nvidia.CudaUtils.__init__(mock.MagicMock())  # Triton's own part, the same for all kernels
        nvidia.CudaLauncher(done.src, done.metadata)
    files += [Path(path) for path in done.metadata_group.values() if path.endswith((".cubin", ".json"))]
    return [*files, *files[-1].parent.glob("__grp__*")]


def unpack(folder: Path, cache: Path) -> int:
    """Unpack the files for ``TRITON_CACHE_DIR=cache``; return the number of kernels."""
    for path in folder.glob("*/*.gz"):
        target = cache / path.parent.name / path.stem
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.decompress(path.read_bytes()))
        if target.name.startswith("__grp__"):  # has the paths of the machine that wrote it
            names = [Path(child).name for child in json.loads(target.read_text())["child_paths"].values()]
            moved = {name: str(target.with_name(name)) for name in names if path.with_name(f"{name}.gz").exists()}
            target.write_text(json.dumps({"child_paths": moved}))
    return len(list(folder.glob("*/*.cubin.gz")))
