"""A CUDA that is not there: tensors of device cuda that have shapes, dtypes and gradients, but no numbers.

torch's FakeTensors compute shapes and refuse operands on two devices. Here whatever is on the CPU stays real, so that
collators and samplers run as they are, and three more things are found: a value that the host asks of the device, a
copy between the two, and operands of two dtypes where FakeTensors take them and a GPU does not.

A CPU build of torch has no device cuda: ``guard.cpp`` adds one. torch looks for it once, early, so the library is
preloaded, and the process that has it is not the one that runs the tests.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("guard.cpp")
WATCHED = ("tape_ds", "transformers", "accelerate")
"""Packages whose innermost function is a wait's place."""
SAME_DTYPE = ("mm", "addmm", "index_copy", "index_put", "_varlen_attn")
"""Operators whose floating operands must have one dtype on a GPU, and of which FakeTensors do not ask it."""
aten = torch.ops.aten


def why_not() -> str | None:
    """Why this machine cannot have the device."""
    if torch.version.cuda or torch.version.hip:
        return "torch is built for GPUs and has a device cuda already"
    if sys.platform != "linux":
        return "the library is preloaded as Linux does it"
    return (
        None
        if _compiler()
        else "no C++ compiler (CXX, c++, g++ or clang++) to build the device with"
    )


def _compiler() -> str | None:
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def library() -> Path:
    """Return the shared library, compiled once for each torch, compiler and source."""
    compiler, folder = _compiler(), Path(torch.__file__).parent
    assert compiler is not None
    made_of = f"{folder} {torch.__version__} {compiler} {SOURCE.read_text(encoding='utf-8')}"
    built = (
        ROOT / ".cache" / "fake_cuda" / f"{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
    )
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        unfinished = built.with_suffix(f".{os.getpid()}")
        includes = [f"-I{folder}/include", f"-I{folder}/include/torch/csrc/api/include"]
        libraries = [f"-L{folder}/lib", "-lc10", "-ltorch_cpu"]
        command = [compiler, "-std=c++20", "-shared", "-fPIC", *includes, str(SOURCE), *libraries]
        subprocess.run([*command, "-o", str(unfinished)], check=True)
        unfinished.replace(built)
    return built


def environment() -> dict[str, str]:
    """Return the environment of a process that has the device; Triton's kernels are not interpreted there."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    libraries = Path(torch.__file__).parent / "lib"
    return kept | {
        "LD_PRELOAD": str(library()),
        "LD_LIBRARY_PATH": str(libraries),
        "PYTHONPATH": str(ROOT),
    }


def pretend() -> None:
    """Answer what torch asks the driver, as an H100 would; for the rest of this process."""
    FakeTensorMode.avoid_device_init = property(lambda _: True)
    torch._C._ensureCUDADeviceGuardSet()
    # torch.tensor(..., device="cuda") then makes its numbers on the host, and asks for a copy
    torch._C._set_only_lift_cpu_tensors(True)
    answers = {
        "is_available": True,
        "_lazy_init": None,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "get_device_name": "NVIDIA H100",
        "get_device_capability": (9, 0),
        "get_device_properties": SimpleNamespace(
            shared_memory_per_block_optin=232448, multi_processor_count=132
        ),
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "device_of": contextlib.nullcontext(),
        "manual_seed_all": None,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "max_memory_reserved": 0,
        "reset_peak_memory_stats": None,
        "empty_cache": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)


class FakeCuda(TorchDispatchMode):
    """Within it ``device="cuda"`` works."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: dict[str, str] = {}
        """Where the host waited for the device, or copied from one to the other: ``path:function`` -> what it did."""
        self.answers: dict[str, Iterator[Any]] = {}
        """What the device answers at a place, one after the other; else 0."""
        self.bodies: dict[Any, Any] = {}
        """Operators to be computed by this function, in place of what they tell of their outputs."""
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        device = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        if device != "cuda" and not any(x.is_cuda for x in given):
            return func(*args, **kwargs)
        if func in self.bodies:
            with self:
                return self.bodies[func](*args, **kwargs)
        implicit = torch._C.DispatchKey.CompositeImplicitAutograd
        if func.namespace == "aten" and func.has_kernel_for_dispatch_key(implicit):
            with self:  # within an operator's body they arrive whole
                return func.decompose(*args, **kwargs)
        name = func.name().partition("::")[2].partition(".")[0].rstrip("_")
        dtypes = {x.dtype for x in given if x.is_floating_point()}
        # which names another
        if name in SAME_DTYPE and len(dtypes) > 1 and not func._overloadname.startswith("dtype"):
            raise RuntimeError(f"{name} of {', '.join(sorted(map(str, dtypes)))}")
        if func is aten._local_scalar_dense.default:
            answers = self.answers.get(self.note(func))
            return (
                torch.zeros((), dtype=given[0].dtype).item() if answers is None else next(answers)
            )
        if func is aten.equal.default:
            return next(self.answers.get(self.note(func), iter([False])))
        if name in ("_to_copy", "copy"):
            to_device = device == "cuda" if name == "_to_copy" and device else given[0].is_cuda
            if to_device != given[-1].is_cuda:
                self.note(func)
                if not to_device:
                    return (
                        torch.zeros_like(given[0], device="cpu", dtype=kwargs.get("dtype"))
                        if device
                        else args[0]
                    )
        elif any(x.dim() and not x.is_cuda for x in given):
            self.note(func)  # an index on the host, for one
        try:
            with self._fake:
                return func(*args, **kwargs)
        except DynamicOutputShapeException:
            self.note(func)
            raise

    def note(self, what: Any) -> str:
        """Add a wait, and return its place."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            path, function = (
                frame.f_code.co_filename,
                frame.f_code.co_qualname.partition(".<locals>")[0],
            )
            for room in WATCHED:
                if f"/{room}/" in path:
                    place = f"{room}/{path.rpartition(f'/{room}/')[2]}:{function}"
                    self.waits.setdefault(place, f"{what}, line {frame.f_lineno}")
                    return place
            frame = frame.f_back
        self.waits.setdefault("elsewhere", str(what))
        return "elsewhere"


def main() -> None:
    """Read cases, a line of JSON each, and answer each with a line of JSON."""
    pretend()
    from tests.fake_cuda import cases  # the device has to be there first

    # torch logs every error in a FakeTensor's shapes, and it is in the answer
    logging.disable(logging.ERROR)
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        found = cases.outcome(cases.Case(**json.loads(line)))
        print(json.dumps(found._asdict()), file=answers, flush=True)


if __name__ == "__main__":
    main()
