"""Find the kernels that a call of an operator launches, and as what Triton would compile them, without a GPU.

The operators run as they do on a GPU: their checks, tables and autograd, and Triton's launch path, which specialises a
kernel on its arguments (1, multiples of 16, alignment, None). Tensors are on torch's ``meta`` device with ``is_cuda``
patched to True, so that real sizes cost nothing. A stub of Triton's driver names the target, and the cache hook that
Triton calls before it compiles records the specialisation and skips the compilation.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch

from tape_ds.kernels import jit, launch
from tape_ds.kernels.jit import SHARED_MEMORY, triton
from tape_ds.kernels.launch import Launch

DEVICE = torch.device("meta")
PROCESSORS = 132
WARP = 32


class Build(NamedTuple):
    module: str
    kernel: str
    capability: int
    dtype: str
    # the first that needs it
    call: str
    launch: Launch
    # Triton's description of the specialisation, from which ``JITFunction.preload`` compiles it anywhere
    data: str

    @property
    def title(self) -> str:
        return f"{self.kernel} {self.call}"


def driver(capability: int) -> Any:
    """Return a stub of Triton's driver. A GPU's number is its capability, since Triton has a cache for each number."""
    return SimpleNamespace(
        get_current_target=lambda: triton.backends.compiler.GPUTarget("cuda", capability, WARP),
        get_current_device=lambda: capability,
        get_current_stream=lambda device: 0,
    )


class Recorder:
    """Every kernel that is launched on one GPU, each specialisation once."""

    def __init__(self, capability: int, dtype: str):
        self.capability = capability
        self.dtype = dtype
        self.call = ""
        self.launch: Launch | None = None
        self.builds: dict[str, Build] = {}

    def options(self, chosen: Launch) -> dict[str, Any]:
        """Replace ``Launch.options``, which every launch reads just before it, and record the launch."""
        self.launch = chosen
        return OPTIONS(chosen)

    def note(self, *, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Serve as Triton's cache hook; True stops Triton from compiling and launching."""
        if self.launch is None:
            raise RuntimeError(f"{fn.name} is launched without the options of a Launch")
        build = Build(
            fn.module,
            fn.name,
            self.capability,
            self.dtype,
            self.call,
            self.launch,
            compile["specialization_data"],
        )
        self.builds.setdefault(f"{fn.module} {build.data}", build)
        self.launch = None
        return True


OPTIONS = Launch.options.fget  # type: ignore[attr-defined]


@contextlib.contextmanager
def gpu(recorder: Recorder) -> Iterator[None]:
    """Patch torch and Triton as if there were a GPU; ``TAPE_DS_AUTOTUNE`` makes operators try all launches of a row."""

    # in place of a measurement: each launch of a row is recorded, and none is faster
    def launch_once(run: Callable[[], object]) -> float:
        run()
        return 0.0

    properties = SimpleNamespace(
        shared_memory_per_block_optin=SHARED_MEMORY[recorder.capability],
        multi_processor_count=PROCESSORS,
    )
    stand_ins = (
        mock.patch.object(torch.Tensor, "is_cuda", property(lambda x: x.is_meta)),
        # it refuses the meta device
        mock.patch.object(torch, "autocast", lambda *_, **__: contextlib.nullcontext()),
        mock.patch.object(
            torch.cuda, "get_device_capability", lambda _: divmod(recorder.capability, 10)
        ),
        mock.patch.object(torch.cuda, "get_device_properties", lambda _: properties),
        mock.patch.object(triton.knobs.runtime, "jit_cache_hook", recorder.note),
        mock.patch.object(triton.testing, "do_bench", launch_once),
        mock.patch.object(Launch, "options", property(recorder.options)),
        mock.patch.dict(os.environ, {launch.AUTOTUNE: "1"}),
        mock.patch.dict(launch._MEASURED, clear=True),
    )
    with contextlib.ExitStack() as stack:
        for stand_in in stand_ins:
            stack.enter_context(stand_in)
        triton.runtime.driver.set_active(driver(recorder.capability))
        # it was asked before there was this GPU
        jit.capability.cache_clear()
        yield
