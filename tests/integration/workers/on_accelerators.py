"""Run by every rank: a launcher on accelerators that are not there, whose collectives refuse tensors of the CPU, as
NCCL's do. Gloo takes both, so that a run on CPUs shows nothing of it.

    on_accelerators.py launchers/extend_llama.py --recipe ...

A CPU device with a number ("cpu:0") is the accelerator, one without a number the host. A mark on a tensor's storage
says in which memory it would be: what ``device=`` or ``.to`` puts on the accelerator, and all that follows from it.
"""

import runpy
import sys
from types import SimpleNamespace
from typing import Any

import torch
from accelerate.state import PartialState
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch import Tensor, distributed
from torch.distributed import ProcessGroup, Work, distributed_c10d
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tape_ds.distributed import rank_sync

ACCELERATOR, HOST = torch.device("cpu", 0), torch.device("cpu")
ANYWHERE = "c10d.barrier"
"""Its tensor is made by torch, where the group wants it."""
_host_groups: set[str] = set()
"""Names of the process groups that were asked for gloo, as an NCCL job asks for it."""


class Kind(str):
    """The accelerator's name without a number, as "cuda" is; DeepSpeed compares it with "cpu"."""


def is_on_accelerator(x: Tensor) -> bool:
    """Whether it would be in a GPU's memory."""
    return getattr(x.untyped_storage(), "on_accelerator", False)


def put(x: Tensor, on_accelerator: bool) -> Tensor:
    """Mark a tensor's memory."""
    storage: Any = x.untyped_storage()
    storage.on_accelerator = on_accelerator
    return x


def names_accelerator(device: Any) -> bool:
    """Whether this argument means the accelerator."""
    return isinstance(device, Kind) or torch.device(device) != HOST


class Devices(TorchFunctionMode):
    """What ``device=``, ``.to`` and ``.cpu`` do to the memory of a tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.to:
            return _moved(*args, **kwargs)
        if func is Tensor.cpu:
            return _moved(*args, HOST)
        device = kwargs.get("device")
        if isinstance(device, Kind):
            kwargs["device"] = ACCELERATOR
        found = func(*args, **kwargs)
        # the only constructor that hides its device from the operators
        return (
            put(found, device is not None and names_accelerator(device))
            if func is torch.tensor
            else found
        )


def _moved(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    given, *others = (*args, None)
    names = ["dtype", "non_blocking", "copy"]
    if isinstance(given, Tensor):
        given, kwargs["dtype"] = given.device, given.dtype
        del names[0]
    elif isinstance(given, torch.dtype):
        given, others = None, [given, *others]
    kwargs |= zip(names, others, strict=False)
    given = kwargs.pop("device", given)
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    before = is_on_accelerator(x)
    after = before if given is None else names_accelerator(given)
    found = x.to(**kwargs) if kwargs else x
    if after is not before and found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        found = found.clone()
    return put(found, after)


class Operators(TorchDispatchMode):
    """Results are where their tensors are; a collective of tensors that its group has no backend for is an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        tensors = [each for each in given if isinstance(each, Tensor)]
        is_collective = func.namespace == "c10d"
        if is_collective:
            _check(str(func.overloadpacket), given, tensors)
        found = func(*args, **kwargs)
        device = kwargs.get("device")
        there = (
            any(map(is_on_accelerator, tensors)) if device is None else names_accelerator(device)
        )
        known = {each.untyped_storage().data_ptr() for each in tensors}
        for each in tree_leaves(found):
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() not in known:
                put(each, there)
            elif is_collective and isinstance(each, torch.ScriptObject):
                Work.unbox(each).wait()  # nothing here is about streams
        return found


def _check(name: str, given: list[Any], tensors: list[Tensor]) -> None:
    (group,) = (
        ProcessGroup.unbox(each)
        for each in given
        if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each._type())
    )
    wants_accelerator = group.group_name not in _host_groups
    if name != ANYWHERE and any(
        is_on_accelerator(each) is not wants_accelerator for each in tensors
    ):
        device = "cpu" if wants_accelerator else "cuda"
        raise RuntimeError(f"No backend type associated with device type {device} ({name})")


def install() -> None:
    """Have torch and the libraries take "cpu:0" for an accelerator whose backend is not gloo."""
    device_of, joined = torch._C.TensorBase.device.__get__, PartialState.__init__
    new_group, device_of_objects = distributed.new_group, distributed_c10d._get_object_coll_device

    def device(self: Tensor) -> torch.device:
        found = device_of(self)
        return ACCELERATOR if found.type == "cpu" and is_on_accelerator(self) else found

    def grouped(*args: Any, **kwargs: Any) -> Any:
        group = new_group(*args, **kwargs)
        if kwargs.get("backend") == "gloo":
            _host_groups.add(group.group_name)
        return group

    def for_objects(group: Any = None) -> str:
        group = group or distributed.group.WORLD
        return device_of_objects(group) if group.group_name in _host_groups else str(ACCELERATOR)

    def join(self: PartialState, *args: Any, **kwargs: Any) -> None:
        joined(self, *args, **kwargs)
        self.device = ACCELERATOR

    Tensor.device = property(device)
    distributed.new_group = grouped
    distributed_c10d._get_object_coll_device = for_objects
    rank_sync.distributed = SimpleNamespace(**vars(distributed) | {"get_backend": lambda: "nccl"})
    CPU_Accelerator.current_device_name = lambda self: str(ACCELERATOR)
    CPU_Accelerator.device_name = lambda self, index=None: (
        Kind("cpu") if index is None else str(ACCELERATOR)
    )
    PartialState.__init__ = join


def main() -> int:
    """The launcher's."""
    del sys.argv[0]
    install()
    with Devices(), Operators():
        runpy.run_path(sys.argv[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
