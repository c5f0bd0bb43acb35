"""Extensions of DeepSpeed's that a run needs and that are compiled on the machine: at its first start, by torch.

Which ones, whether this machine can, and how to do without is said in the dry run and before anything is loaded. They
are compiled then too, one process after another, and kept for later runs.

torch marks a folder that it compiles in by a file ``lock``, and a killed process leaves it behind: the next one would
wait for it without an end. Its holder keeps it open, so that a lock that no process of this machine has open is left
over, and removed; on a disk of several machines, only once nothing in the folder has changed for a long time.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from torch.utils import cpp_extension

from tape_ds.config import deepspeed_config
from tape_ds.errors import Problem, UserError, is_main_process
from tape_ds.training.environment import say

_BUILDERS = {
    "fused_adam": "FusedAdamBuilder",
    "cpu_adam": "CPUAdamBuilder",
    "async_io": "AsyncIOBuilder",
    "quantizer": "QuantizerBuilder",
}
"""DeepSpeed's extensions by the name of their folder, and the classes that compile them."""
_ON_A_GPU = ("async_io", "fused_adam", "quantizer")
"""Those that ask for a CUDA toolkit where the run has a GPU."""
_DURATION = "a minute or two on idle cores, more on busy ones"
_LOCK = "lock"
_OURS = "tape_ds.lock"
_QUEUE_SECONDS = 1.0
_SHARED_SECONDS = 1800
"""A folder on a disk of several machines in which nothing changes for so long is compiled in by none of them."""
_OF_ONE_MACHINE = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs")
"""File systems on which this machine's processes are all that there are."""


@dataclass(frozen=True)
class CompiledOp:
    """An extension that a run's DeepSpeed JSON needs."""

    name: str
    field: str
    value: Any
    without: str
    """How to do without it."""

    def builder(self) -> Any:
        from deepspeed.accelerator import get_accelerator

        return get_accelerator().create_op_builder(_BUILDERS[self.name])

    def is_installed(self) -> bool:
        """Return whether it came with DeepSpeed's package, compiled."""
        from deepspeed.accelerator import get_accelerator
        from deepspeed.git_version_info import accelerator_name, installed_ops

        return bool(installed_ops.get(self.name)) and accelerator_name == get_accelerator()._name

    def folder(self) -> Path:
        """Return the folder that torch compiles it in; makes it."""
        return Path(cpp_extension._get_build_directory(self.name, verbose=False))

    def is_compiled(self) -> bool:
        return (self.folder() / f"{self.name}.so").is_file()


def needed(config: Mapping[str, Any] | None) -> list[CompiledOp]:
    """Return what DeepSpeed compiles for this JSON."""
    if not config:
        return []
    found = []
    device = deepspeed_config.lookup(config, "zero_optimization.offload_optimizer.device")
    is_offloaded = device in ("cpu", "nvme")
    adam = "cpu_adam" if is_offloaded else "fused_adam"
    own = config.get("optimizer")
    if own is not None:
        without = 'remove the block, or give its params "torch_adam": true: torch\'s AdamW needs no compiler'
        if not deepspeed_config.lookup(config, "optimizer.params.torch_adam"):
            found.append(CompiledOp(adam, "deepspeed.optimizer", own, without))
    elif is_offloaded and config.get("zero_force_ds_cpu_optimizer") is not False:
        key = "zero_force_ds_cpu_optimizer"
        without = f'give "{key}": false: torch\'s AdamW needs no compiler'
        found.append(CompiledOp(adam, f"deepspeed.{key}", config.get(key), without))
    for block in ("offload_optimizer", "offload_param"):
        name = f"zero_optimization.{block}.device"
        if deepspeed_config.lookup(config, name) == "nvme":
            found.append(
                CompiledOp("async_io", f"deepspeed.{name}", "nvme", 'give "device": "cpu"')
            )
            break
    for key in ("zero_quantized_weights", "zero_quantized_gradients"):
        if deepspeed_config.lookup(config, f"zero_optimization.{key}"):
            found.append(
                CompiledOp("quantizer", f"deepspeed.zero_optimization.{key}", True, "remove it")
            )
            break
    return found


def outline(config: Mapping[str, Any] | None) -> str | None:
    """Return what a run compiles at its start, for people; None if nothing."""
    parts = []
    for each in needed(config):
        tools = "a C++ compiler and ninja"
        if each.name in _ON_A_GPU:
            tools = "a C++ compiler, ninja and, on GPUs, nvcc"
        when = f"compiled at the first start on a machine: {_DURATION}, with {tools}"
        with contextlib.suppress(OSError):  # `check` has it
            if each.is_installed():
                when = "came with DeepSpeed"
            elif each.is_compiled():
                when = f"compiled here before, in {each.folder()}"
        parts.append(
            f"DeepSpeed's {each.name}, for {each.field}: {when}. To do without: {each.without}"
        )
    return "; ".join(parts) or None


def check(config: Mapping[str, Any] | None) -> list[Problem]:
    """Check that this machine has what compiling takes."""
    found = []
    for each in needed(config):
        try:
            if each.is_installed() or each.is_compiled():
                continue
        except OSError as error:
            remedy = "let TORCH_EXTENSIONS_DIR name a folder that can be written to"
            where = os.environ.get("TORCH_EXTENSIONS_DIR")
            found.append(
                Problem("TORCH_EXTENSIONS_DIR", where, f"no place to compile in ({error})", remedy)
            )
            continue
        if lacking := _lacking(each):
            wrong = f"DeepSpeed compiles its {each.name} for this, and {lacking}"
            found.append(Problem(each.field, each.value, wrong, f"install it, or {each.without}"))
    return found


def _lacking(extension: CompiledOp) -> str | None:
    """Return what this machine lacks to compile an extension."""
    from deepspeed.accelerator import get_accelerator

    compiler = cpp_extension.get_cxx_compiler()
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler here ({compiler}; apt install g++)"
    if not cpp_extension.is_ninja_available():
        return "there is no ninja here (pip install ninja)"
    on_gpu = get_accelerator().device_name() == "cuda" and extension.name in _ON_A_GPU
    if on_gpu and (
        cpp_extension.CUDA_HOME is None
        or not Path(cpp_extension.CUDA_HOME, "bin", "nvcc").is_file()
    ):
        return "there is no CUDA toolkit here (nvcc; CUDA_HOME names its folder)"
    return None


def compile_all(config: Mapping[str, Any] | None) -> None:
    """Compile what a run needs and this machine does not have yet; every process calls it, before it has anything to
    lose.

    Raises:
        UserError: the compiler fails.
    """
    for each in needed(config):
        if each.is_installed():
            continue
        folder = each.folder()
        with _one_at_a_time(folder):
            _free(folder, say)
            began = time.monotonic()
            is_new = not each.is_compiled() and is_main_process()
            if is_new:
                say(
                    f"compiling DeepSpeed's {each.name} in {folder}: {_DURATION}. To do without: {each.without}"
                )
            try:
                each.builder().load(verbose=False)
            except (RuntimeError, ImportError, OSError) as error:
                words = [line for line in str(error).splitlines() if "error" in line.lower()] or [
                    str(error)
                ]
                wrong = f"DeepSpeed's {each.name} cannot be compiled: {words[0].strip()}"
                raise UserError(Problem(each.field, each.value, wrong, each.without)) from error
            if is_new:
                say(f"compiled in {time.monotonic() - began:.0f} s")


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process of this project in at a time; the system frees the place of one that is killed."""
    with (folder / _OURS).open("w") as file:
        # a file system without locks
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free(folder: Path, say: Callable[[str], None]) -> None:
    """Wait for a process that compiles in a folder, and remove the lock of one that is gone."""
    lock = folder / _LOCK
    told = False
    while (holder := _holder(lock)) is not _GONE:
        if holder is None and (
            _is_of_one_machine(folder) or _idle_seconds(folder) > _SHARED_SECONDS
        ):
            lock.unlink(missing_ok=True)
            say(f"removed {lock}: of a process that was killed while it compiled")
            return
        if not told:
            whose = f"process {holder} compiles there"
            if holder is None:
                whose = f"another machine may compile there; if none does, remove it, else after {_SHARED_SECONDS} s"
            say(f"waiting for {lock}: {whose}")
            told = True
        time.sleep(_QUEUE_SECONDS)


_GONE = object()


def _holder(lock: Path) -> Any:
    """Return the process of this machine that has a file open, or None; :data:`_GONE` if there is no such file."""
    try:
        wanted = lock.stat()
    except FileNotFoundError:
        return _GONE
    for pid in psutil.pids():
        # it has ended, or is another user's
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.path.samestat(descriptor.stat(), wanted):
                        return pid
    return None


def _is_of_one_machine(folder: Path) -> bool:
    """Return whether only this machine's processes of this user can be in a folder."""
    if folder.stat().st_uid != os.getuid():
        return False
    around = {folder.resolve(), *folder.resolve().parents}
    mounts = [each for each in psutil.disk_partitions(all=True) if Path(each.mountpoint) in around]
    nearest = max(mounts, key=lambda each: len(each.mountpoint), default=None)
    return nearest is not None and nearest.fstype in _OF_ONE_MACHINE


def _idle_seconds(folder: Path) -> float:
    """Return how long no file of a folder but ours has changed."""
    times = [path.stat().st_mtime for path in folder.iterdir() if path.name != _OURS]
    return time.time() - max(times, default=0)
