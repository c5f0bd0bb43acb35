"""The launches of the kernels' tests, as calls for the compile gate.

The tests run on meta tensors. Most fail where they compare, which is after their launches.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch.fx.experimental import _config
from torch.overrides import TorchFunctionMode

from tape_ds.kernels.launch import AUTOTUNE

TESTS = [f"tests/kernels/test_{name}.py" for name in ("tape_attention", "position_mix", "rotate", "decode_attention")]


def calls(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield one call for all tests, which choose precisions themselves."""
    if dtype == torch.bfloat16:
        yield "tests", run_tests


def run_tests() -> None:
    """Run the tests that are not slow as if there were a GPU."""
    patches = (
        mock.patch.dict(os.environ, {AUTOTUNE: "0"}),
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(_config, "meta_nonzero_assume_all_nonzero", True),
        contextlib.redirect_stdout(io.StringIO()),
        OnMeta(),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        pytest.main(["-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow", *TESTS])


class OnMeta(TorchFunctionMode):
    """Move everything from the GPU to the meta device, where every number that is read is 0."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__float__) and args[0].is_meta:
            return func(torch.zeros(()))
        return func(*map(self.moved, args), **{name: self.moved(x) for name, x in (kwargs or {}).items()})

    @staticmethod
    def moved(x: Any) -> Any:
        return "meta" if isinstance(x, str | torch.device) and str(x).startswith("cuda") else x
