"""Blocks that are compiled where they train, around attention.

A block of ours becomes two graphs: from its normalised input to queries, keys and values, and from attention's output
to its end. Attention stays between them as it is, one kernel that a compiler could not join with anything, with all
that it reads of documents, caches and other processes; so no graph breaks, and none depends on how rows are packed.
The blocks of one kind share their graphs, and a graph serves every length.

Scoring and generation during a run compute as a run without compilation does.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tape_ds.methods.modules import modules_of
from tape_ds.models.llama import TapeDecoderLayer

_KINDS = 64
"""Graphs that one function may have: of kinds of blocks, times those of lengths and batches that are special (1)."""


def compile_model(
    model: nn.Module, *, backend: str | None, mode: str | None, unbroken: bool
) -> str:
    """Compile a model in training mode, in place, and return in words what was compiled.

    Args:
        model: wrapped by peft or not; its feed-forwards and the recomputation of its blocks are chosen.
        backend: torch.compile's, None for its default.
        mode: torch.compile's, None for its default.
        unbroken: raise where a block cannot be one graph on each side of attention. An engine that gathers parameters
            while a block computes cannot.
    """
    options: dict[str, Any] = {"backend": backend or "inductor", "mode": mode}
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _KINDS)
    blocks = modules_of(model, TapeDecoderLayer)
    if not blocks:
        _compile_method(model, "forward", options)
        return "compiled: the model as a whole"

    options |= {"fullgraph": unbroken, "dynamic": True}
    for block in blocks:
        _compile_method(block.self_attn, "project", options)
        _compile_method(block, "finish", options)
    pieces = "" if unbroken else ", in pieces where parameters are gathered"
    return f"compiled: {len(blocks)} blocks, around attention{pieces}"


def _compile_method(module: nn.Module, name: str, options: dict[str, Any]) -> None:
    plain: Callable[..., Any] = getattr(module, name)
    compiled = torch.compile(plain, **options)

    @functools.wraps(plain)
    def compute(*args: Any, **kwargs: Any) -> Any:
        chosen = compiled if module.training else plain
        return chosen(*args, **kwargs)

    setattr(module, name, compute)
