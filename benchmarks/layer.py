"""One decoder layer of a model, forward and backward: TAPE's beside RoPE's.

It is the middle one of three, called with what it gets inside that model, so TAPE's both reads a state and updates it.
"""

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import models
from benchmarks.benchmark_case import BenchmarkCase, Setting, Truth, expected_from
from benchmarks.measure import Runner, bytes_of
from benchmarks.shapes import BenchmarkModel
from tape_ds import TapeForCausalLM

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def case(shape: BenchmarkModel, setting: Setting) -> BenchmarkCase:
    """Return both encodings by every attention backend of this device."""
    fields = models.sizes(replace(shape, layers=3)) | {"vocab_size": 1_024}
    member = models.family(fields, setting)
    ids = models.tokens(shape, setting.device) % fields["vocab_size"]

    @functools.cache
    def caught(encoding: str, all_tokens: bool) -> Arguments:
        shown = ids if all_tokens else models.first_tokens(ids)
        return catch(member(encoding, "sdpa"), shown, **models.packing(shape, setting.device, few=not all_tokens))

    def build(encoding: str, backend: str) -> Runner:
        layer = member(encoding, backend).model.layers[1]
        args, kwargs = caught(encoding, True)
        wanted = [x for x in args if isinstance(x, Tensor) and x.requires_grad] + list(layer.parameters())
        returned: list[Tensor] = []

        def forward() -> list[Tensor]:
            return [out for out in layer(*args, **kwargs) if isinstance(out, Tensor)]

        def backward(out: list[Tensor]) -> tuple[Tensor, ...]:
            if not returned:
                returned.extend(_returned(out))
            return torch.autograd.grad(out, wanted, returned)

        return Runner(forward, backward, lambda: _outcome(layer, caught(encoding, False)), bytes_of(wanted))

    def truth(encoding: str) -> Truth:
        model, (args, kwargs) = member(encoding, "sdpa"), caught(encoding, False)
        exact, plain = (
            _outcome(
                models.by_reference(model, dtype).train().model.layers[1],
                (tuple(_leaf(each, dtype) for each in args), kwargs),
            )
            for dtype in (torch.float64, model.dtype)
        )
        return expected_from(exact, plain, model.dtype)

    return models.by_backend(build, truth, models.backends(setting.device))


def catch(model: TapeForCausalLM, ids_BT: Tensor, **packing: Any) -> Arguments:
    """Return what the second layer is called with; hidden states and position state want gradients."""
    found: list[Arguments] = []

    def remember(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append((args, kwargs))

    handle = model.model.layers[1].register_forward_pre_hook(remember, with_kwargs=True)
    with torch.no_grad():
        model(input_ids=ids_BT, use_cache=False, **packing)
    handle.remove()
    ((args, kwargs),) = found
    return tuple(_leaf(each, None) for each in args), kwargs


def _leaf(value: Any, dtype: torch.dtype | None) -> Any:
    """Return a tensor as a leaf that wants a gradient; anything else as it is."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().to(dtype or value.dtype).clone().requires_grad_()


def _returned(out: list[Tensor]) -> list[Tensor]:
    """Return what comes back to each output: normal numbers, the same in every precision."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(x.shape, generator=generator).to(x.device, x.dtype) for x in out]


def _outcome(layer: nn.Module, arguments: Arguments) -> dict[str, Tensor]:
    args, kwargs = arguments
    leaves = {f"d_argument {at}": x for at, x in enumerate(args) if isinstance(x, Tensor) and x.requires_grad}
    wanted = leaves | dict(layer.named_parameters())
    out = [x for x in layer(*args, **kwargs) if isinstance(x, Tensor)]
    gradients = torch.autograd.grad(out, list(wanted.values()), _returned(out))
    found = {f"out {at}": x.detach() for at, x in enumerate(out)}
    return found | dict(zip(wanted, gradients, strict=True))
