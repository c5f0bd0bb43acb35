"""Which kernels a call of an operator launches, and as what Triton would compile them, found without a GPU.

The operators run as they do on a GPU: their checks, their tables, their autograd and Triton's own launch path, which
specialises a kernel on its arguments (1, multiples of 16, alignment, None). Two things stand in for the GPU. Tensors
are on torch's ``meta`` device, so real sizes cost nothing, and ``is_cuda`` says True of them. Triton's driver names the
target; its cache hook, which it asks before it compiles, writes down what was asked for and says no.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
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
    """One kernel as one launch specialises it."""

    module: str
    kernel: str
    capability: int
    dtype: str
    call: str
    """The first call that needs it."""
    launch: Launch
    data: str
    """Triton's own account of the specialisation, from which ``JITFunction.preload`` compiles it anywhere."""

    @property
    def title(self) -> str:
        """Kernel and call."""
        return f"{self.kernel} {self.call}"


class Driver:
    """Triton's driver for a GPU that is not there. A GPU's number is its capability: Triton keeps caches by number."""

    def __init__(self, capability: int):
        self.capability = capability

    def get_current_target(self) -> Any:
        """Return what code is made for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, WARP)

    def get_current_device(self) -> int:
        """Return the number of the GPU."""
        return self.capability

    def get_current_stream(self, device: int) -> int:
        """Return the default one."""
        return 0


class Recorder:
    """Every kernel that is launched on one GPU, each specialisation once."""

    def __init__(self, capability: int, dtype: str):
        self.capability, self.dtype = capability, dtype
        self.call = ""
        self.launch: Launch | None = None
        self.builds: dict[str, Build] = {}

    def options(self, chosen: Launch) -> dict[str, Any]:
        """In place of ``Launch.options``, which every launch reads just before it: note whose they are."""
        self.launch = chosen
        return OPTIONS(chosen)

    def note(self, *, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Triton's cache hook. True: Triton then neither compiles nor launches."""
        if self.launch is None:
            raise RuntimeError(f"{fn.name} is launched without the options of a Launch")
        build = Build(
            fn.module, fn.name, self.capability, self.dtype, self.call, self.launch, compile["specialization_data"]
        )
        self.builds.setdefault(f"{fn.module} {build.data}", build)
        self.launch = None
        return True


OPTIONS = Launch.options.fget  # type: ignore[attr-defined]


def time_all(run: Callable[[], object]) -> float:
    """In place of Triton's timing: launch it, which takes no time."""
    run()
    return 0.0


@contextlib.contextmanager
def gpu(recorder: Recorder) -> Iterator[None]:
    """Everything that stands in for a GPU. ``TAPE_DS_AUTOTUNE`` makes operators try every launch of a table's row."""
    properties = SimpleNamespace(
        shared_memory_per_block_optin=SHARED_MEMORY[recorder.capability], multi_processor_count=PROCESSORS
    )
    stand_ins = (
        mock.patch.object(torch.Tensor, "is_cuda", property(lambda x: x.is_meta)),
        mock.patch.object(torch, "autocast", lambda *_, **__: contextlib.nullcontext()),  # it knows no meta device
        mock.patch.object(torch.cuda, "get_device_capability", lambda _: divmod(recorder.capability, 10)),
        mock.patch.object(torch.cuda, "get_device_properties", lambda _: properties),
        mock.patch.object(triton.knobs.runtime, "jit_cache_hook", recorder.note),
        mock.patch.object(triton.testing, "do_bench", time_all),
        mock.patch.object(Launch, "options", property(recorder.options)),
        mock.patch.dict(os.environ, {launch.AUTOTUNE: "1"}),
        mock.patch.dict(launch._MEASURED, clear=True),
    )
    with contextlib.ExitStack() as stack:
        for each in stand_ins:
            stack.enter_context(each)
        triton.runtime.driver.set_active(Driver(recorder.capability))
        jit.capability.cache_clear()
        yield


def run_on_meta(modules: list[ModuleType]) -> None:
    """Let the operators of these modules do on meta tensors what they do on a GPU, instead of only naming shapes."""
    for module in modules:
        for operator in vars(module).values():
            if isinstance(operator, torch.library.CustomOpDef):
                operator.register_fake(operator._init_fn)


class Watched(dict[Any, Any]):
    """A table of launches that knows which of its rows were asked for."""

    def __init__(self, table: dict[Any, Any]):
        super().__init__(table)
        self.reached: set[Any] = set()

    def __getitem__(self, row: Any) -> Any:
        self.reached.add(row)
        return super().__getitem__(row)


def watch(modules: list[ModuleType]) -> dict[str, Watched]:
    """Put a :class:`Watched` in the place of every table, by ``module.NAME``."""
    found = {}
    for module in modules:
        for name, table in list(vars(module).items()):
            rows = table.values() if isinstance(table, dict) else ()
            if any(isinstance(each, Launch) for row in rows if isinstance(row, tuple) for each in row):
                watched = found[f"{module.__name__.rpartition('.')[2]}.{name}"] = Watched(table)
                setattr(module, name, watched)
    return found


def entry_points(modules: list[ModuleType]) -> set[str]:
    """Name of every kernel of these modules that no other kernel calls: those that are launched."""
    kernels = [
        (name, each)
        for module in modules
        for name, each in vars(module).items()
        if isinstance(each, triton.JITFunction) and each.module == module.__name__
    ]
    called = {name for _, each in kernels for name in each.fn.__code__.co_names}
    return {name for name, _ in kernels} - called
