"""The logits of a model without its weights: each block has them while it computes, in fp32."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tape_ds.models import hollow
from tape_ds.models.hollow import WeightSource
from tape_ds.models.outermost import outermost_modules


@torch.no_grad()
def logits_by_block(
    model: Any, sources: Mapping[nn.Parameter, WeightSource], ids_BT: Tensor
) -> Tensor:
    """Return logits [B, T, V].

    Args:
        model: see :mod:`tape_ds.models.hollow`.
        sources: of its parameters, but for those that are in memory.
        ids_BT: tokens.
    """
    blocks = _blocks(model)
    inside: set[nn.Parameter] = set()
    with ExitStack() as stack:
        for block in blocks:
            inside.update(block.parameters())
            stack.enter_context(_filled_when_called(block, sources))
        # embeddings, the head and the last norm are there all the while
        outside = []
        for places in hollow.owners(model).values():
            if getattr(*places[0]) not in inside:
                outside.append(places)
        stack.enter_context(_filled(outside, sources))
        logits: Tensor = model(input_ids=ids_BT).logits.float()
    return logits


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the entries of a model's outermost lists of modules, which are its blocks."""
    blocks: list[nn.Module] = []
    # experts are a list within a block
    for found in outermost_modules(model, nn.ModuleList).values():
        blocks += found.children()
    return blocks


@contextmanager
def _filled_when_called(
    block: nn.Module, sources: Mapping[nn.Parameter, WeightSource]
) -> Iterator[None]:
    stack = ExitStack()

    def fill(*_: Any) -> None:
        stack.enter_context(_filled(list(hollow.owners(block).values()), sources))

    def empty(*_: Any) -> None:
        stack.close()

    handles = [block.register_forward_pre_hook(fill), block.register_forward_hook(empty)]
    try:
        yield
    finally:
        stack.close()
        for handle in handles:
            handle.remove()


@contextmanager
def _filled(
    owners: list[list[tuple[nn.Module, str]]], sources: Mapping[nn.Parameter, WeightSource]
) -> Iterator[None]:
    emptied: list[tuple[nn.Module, str, nn.Parameter]] = []
    try:
        for places in owners:
            held = getattr(*places[0])
            if held not in sources:
                continue
            emptied += [(module, name, held) for module, name in places]
            hollow.put(places, sources[held].rows().float())
        yield
    finally:
        for module, name, held in emptied:
            module.register_parameter(name, held)
