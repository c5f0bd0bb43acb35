"""Blocks that are compiled where they train.

A block of ours whose rows are one document each is one graph. Where rows are packed or padded, where an encoding adds
a bias to scores, and where attention works in groups, it is two, around attention: from its normalised input to
queries, keys and values, and from attention's output to its end. Attention then stays as it is: it skips what other
documents have, where a graph would mask it, and makes a bias a part of the queries at a time. So no graph breaks, and
none depends on how rows are packed.

The blocks of one kind share their graphs. The first length gets one, and all other lengths share a second one.
Scoring and generation during a run compute as a run without compilation does.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from tape_ds.methods.modules import modules_of
from tape_ds.models.llama import BlockInputs, TapeDecoderLayer

_KINDS = 64
"""Graphs that one function may have: of kinds of blocks, times those of lengths and batches."""


def compile_model(model: nn.Module, *, backend: Any, mode: str | None) -> str:
    """Compile a model in training mode, in place, and return in words what was compiled.

    Args:
        model: wrapped by peft or not; its feed-forwards and the recomputation of its blocks are chosen. No engine
            gathers its parameters while it computes (ZeRO-3).
        backend: torch.compile's, by name or a function; None for its default.
        mode: torch.compile's, None for its default.
    """
    options: dict[str, Any] = {"backend": backend or "inductor", "mode": mode}
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _KINDS)
    blocks = modules_of(model, TapeDecoderLayer)
    for block in blocks:
        _compile_block(block, {**options, "fullgraph": True})
    if blocks:
        return f"compiled: {len(blocks)} blocks"
    _compile_method(model, "forward", options)
    return "compiled: the model as a whole"


def _compile_block(block: TapeDecoderLayer, options: dict[str, Any]) -> None:
    whole = torch.compile(block.compute, **options)
    _compile_method(block.self_attn, "project", options)
    _compile_method(block, "finish", options)
    around_attention = block.compute

    def compute(
        hidden_BTD: Tensor, state: Tensor | None, inputs: BlockInputs
    ) -> tuple[Tensor, Tensor | None]:
        by_parts = block.position.biases_scores or block.self_attn.group_tokens is not None
        if by_parts or inputs.layout is not None or not block.training:
            return around_attention(hidden_BTD, state, inputs)
        # a graph makes its own masks
        return whole(hidden_BTD, state, inputs._replace(made=None))

    block.compute = compute  # type: ignore[method-assign]


def _compile_method(module: nn.Module, name: str, options: dict[str, Any]) -> None:
    plain = getattr(module, name)
    compiled = torch.compile(plain, **options)

    @functools.wraps(plain)
    def compute(*args: Any, **kwargs: Any) -> Any:
        chosen = compiled if module.training else plain
        return chosen(*args, **kwargs)

    setattr(module, name, compute)
