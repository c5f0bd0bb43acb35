"""Operators: one definition serves an ordinary call and torch's graphs.

An operator of ``torch.library`` is one node for ``torch.compile`` and ``torch.export``, one call for those who count or
keeps operators (FLOPs, selective recomputation), and has shapes without numbers. Each call of it goes through torch's
dispatcher, and there through Python several times: a small rotation, forward and backward, takes 541 us of CPU time,
and 238 us as an ``autograd.Function``. So a call on ordinary tensors that nothing traces, watches or transforms takes
the same functions as an ``autograd.Function``, to the same bits; every other call is the operator's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Function = Callable[..., Any]


class Operator:
    """A function of tensors, its shapes and its derivative; :func:`operator` makes it of the function."""

    def __init__(
        self, name: str, kernel: Function, schema: str | None, devices: tuple[str, ...] | None
    ):
        self.name = name
        self.kernel = kernel
        """Computes the numbers, without torch's dispatcher and without gradients."""
        self._on_cuda = devices is None or "cuda" in devices
        self._definition = torch.library.custom_op(
            name, kernel, mutates_args=(), device_types=devices, schema=schema
        )
        self._function: Any = None

    def register_fake(self, shapes: Function) -> Function:
        """Register what allocates the results without computing them, as ``torch.library`` calls it."""
        self._definition.register_fake(shapes)
        return shapes

    def register_autograd(self, backward: Function, *, setup_context: Function) -> None:
        """Register the derivative: ``setup_context(ctx, inputs, output)`` and ``backward(ctx, *gradients)``, as
        ``torch.library`` calls them."""
        self._definition.register_autograd(backward, setup_context=setup_context)
        kernel = self.kernel

        def forward(ctx: Any, *inputs: Any) -> Any:
            output = kernel(*inputs)
            setup_context(ctx, inputs, output)
            return output

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self._function = type(self.name.partition("::")[2], (torch.autograd.Function,), methods)

    def __call__(self, *inputs: Any) -> Any:
        if not self._is_ordinary(inputs):
            return self._definition(*inputs)
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs)):
            return self.kernel(*inputs)
        if self._function is None:
            # the operator's result says, when it is differentiated, that it has no derivative
            return self._definition(*inputs)
        return self._function.apply(*inputs)

    def _is_ordinary(self, inputs: tuple[Any, ...]) -> bool:
        """Return whether these are tensors with numbers, and nothing traces, watches or transforms what is done to
        them."""
        # first, and alone: a graph that is being compiled sees this line as a constant, and none of those below
        if torch.compiler.is_compiling():
            return False
        watched = (
            torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active()
        )
        if watched or torch._C._get_tracing_state() is not None:
            return False
        for each in inputs:
            kind = type(each)
            if kind is Tensor or kind is nn.Parameter:
                if not (each.is_cpu or (each.is_cuda and self._on_cuda)):
                    return False
            elif isinstance(each, Tensor):
                return False
        return True


def operator(
    name: str, *, schema: str | None = None, devices: tuple[str, ...] | None = None
) -> Callable[[Function], Operator]:
    """Make an operator of the function below, which changes none of its arguments and returns new tensors.

    Args:
        name: "namespace::name".
        schema: of the operator; None: it follows from the function's annotations.
        devices: on which it is computed, "cpu" among them; None: on any.
    """

    def made(kernel: Function) -> Operator:
        return Operator(name, kernel, schema, devices)

    return made
