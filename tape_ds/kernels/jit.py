"""Triton, where it is installed, and on which devices and tensors its kernels run.

Everything here imports on a machine without Triton. With ``TRITON_INTERPRET=1``, set before anything of this package is
imported, Triton's interpreter runs the kernels on CPU tensors, one program after the other: slow, but the arithmetic of
the kernel itself, which is how it is tested without a GPU. Its ``tl.dot`` is silently wrong for bf16 (measured with
Triton 3.6 to 3.9: it multiplies the bit patterns), so bf16 is refused there.
"""

import functools
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # not published for every platform
    triton = None
    tl = None

logger = logging.getLogger(__name__)

INTERPRETED: bool = triton is not None and triton.knobs.runtime.interpret
# In place of a compute capability: Triton's interpreter, whose blocks are small so that tests have several
INTERPRETER = 0
# Bytes of shared memory that one program may use, by the compute capabilities that launch tables have columns for
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}
_HALVES = (torch.float16, torch.bfloat16)


def jit(function: Callable[..., Any]) -> Any:
    """Apply ``triton.jit``; return the plain function without Triton."""
    return function if triton is None else triton.jit(function)


@functools.cache
def capability(device: torch.device) -> int:
    """Return the launch tables' column for this device: the newest that is not newer than the device and fits its
    memory.
    """
    if INTERPRETED:
        return INTERPRETER
    major, minor = torch.cuda.get_device_capability(device)
    properties = torch.cuda.get_device_properties(device)
    shared = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]  # missing in torch's stub
    fitting = [
        each
        for each, needed in SHARED_MEMORY.items()
        if each <= 10 * major + minor and needed <= shared
    ]
    if not fitting:
        least = min(SHARED_MEMORY)
        raise ValueError(
            f"Triton kernels need compute capability {least / 10} or newer and {SHARED_MEMORY[least] >> 10} KiB of "
            f"shared memory for a program; this GPU has {major}.{minor} and {shared >> 10} KiB"
        )
    return max(fitting)


def why_not(x: Tensor) -> str | None:
    """Return why Triton kernels do not run on a tensor of this device and dtype, or None."""
    if triton is None:
        return "Triton is not installed"
    if INTERPRETED:
        return "Triton's interpreter computes bf16 wrongly" if x.dtype == torch.bfloat16 else None
    if not x.is_cuda:
        return f"Triton kernels need a CUDA device, not {x.device.type!r}"
    if x.dtype not in _HALVES:
        return f"Triton kernels are for fp16 and bf16 on a GPU, not {str(x.dtype).removeprefix('torch.')}"
    return _lacking(x.device)


@torch.compiler.assume_constant_result
def _lacking(device: torch.device) -> str | None:
    """Return the missing part of a GPU or its machine; cached, so that a compiled graph takes the answer."""
    try:
        capability(device)
    except ValueError as error:
        return str(error)
    if (reason := no_compiler()) is not None:
        _say_once(reason)
    return reason


@functools.cache
def no_compiler() -> str | None:
    """Return why Triton cannot build a kernel's launcher in C on this machine, or None."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "Triton needs a C compiler on every machine: install gcc (apt install gcc), or name one in CC"
    # Triton's choice: Debian's own scheme names a folder without headers
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    folder = sysconfig.get_paths(scheme=scheme)["include"]
    try:
        tried = subprocess.run(
            [compiler, "-fsyntax-only", f"-I{folder}", "-x", "c", "-"],
            input="#include <Python.h>\n",
            capture_output=True,
            text=True,
        )
    except OSError as error:
        return f"Triton needs a C compiler on every machine, and {compiler} does not run ({error.strerror})"
    if tried.returncode == 0:
        return None
    if not Path(folder, "Python.h").is_file():
        version = "{}.{}".format(*sys.version_info)
        return (
            f"Triton needs the headers of Python {version} on every machine, and {folder} has no Python.h: "
            f"apt install python{version}-dev, or use a Python that brings them"
        )
    return f"Triton needs a C compiler on every machine, and {compiler} fails: {tried.stderr.strip()[:200]}"


@functools.cache
def _say_once(reason: str) -> None:
    logger.info("kernels: plain PyTorch in place of Triton, slower: %s", reason)
