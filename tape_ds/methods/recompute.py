"""Which blocks are computed again in the backward instead of being remembered, and what of them is kept all the same.

transformers' ``GradientCheckpointingLayer`` has one switch a block and one function that carries it out; here is that
function, for three ways to trade time for memory (Chen et al. 2016, arXiv:1604.06174; Korthikanti et al. 2022,
arXiv:2205.05198, Section 5, for the selective form):

    1, 2, 3 ...          every n-th block keeps its inputs alone, the others keep everything
    selective            every block keeps its inputs and what attention gave: its work grows with the square of the
                         length, what it gives only with the length
    selective_matmuls    and the results of all matrix products with a weight

Never reentrant: that form loses the gradients of a position state.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers.modeling_layers import GradientCheckpointingLayer

Layers = int | Literal["selective", "selective_matmuls"]

ATTENTION = frozenset(
    {
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "flash_attn::_flash_attn_forward",
        "flash_attn::_flash_attn_varlen_forward",
        "flash_attn_3::_flash_attn_forward",
        "tape_ds::cpu_attention",
        "tape_ds::tape_attention",
        "torch_attn::_varlen_attn",
    }
)
"""Operators that hold a whole softmax attention: torch's, FlashAttention's, ours. FlexAttention is compiled code, in
which nobody sees an operator."""
PRODUCTS = frozenset({"aten::mm", "aten::addmm"})
"""What every linear map becomes; attention's and the position updates' own small products are batched (``bmm``)."""
KEPT = {"selective": ATTENTION, "selective_matmuls": ATTENTION | PRODUCTS}


class Recompute:
    """How the blocks of one model are computed again, and what happened.

    Args:
        layers: see the module's table.
        saving: makes the context under which a block's inputs are kept; the offload of
            :mod:`tape_ds.training.memory_savings` is one.
    """

    def __init__(self, layers: Layers, saving: Callable[[], AbstractContextManager[Any]] = nullcontext):
        self.layers = layers
        self.saving = saving
        self.kept = 0
        """Results of operators that were kept so far instead of being computed again."""
        self.blocks = 0
        """Blocks that are computed again."""

    @property
    def selective(self) -> bool:
        return self.layers in KEPT

    def run(self, block: Callable[..., Any], *inputs: Any) -> Any:
        """Return ``block(*inputs)``, recomputed in the backward; its inputs are kept under ``saving``."""
        options: dict[str, Any] = {"use_reentrant": False}
        if self.selective:
            options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, self._policy)
        with self.saving():
            return checkpoint(block, *inputs, **options)

    def _policy(self, context: SelectiveCheckpointContext, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator.name() not in KEPT[str(self.layers)]:
            return CheckpointPolicy.PREFER_RECOMPUTE
        self.kept += not context.is_recompute
        return CheckpointPolicy.MUST_SAVE


def use_recompute(
    model: nn.Module, layers: Layers, saving: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> Recompute:
    """Make every block of ``model``, or every n-th from the first, compute itself again in the backward.

    Gradients are those of a model that remembers everything, bit for bit: the same operators run on the same numbers,
    random ones included. ``layers``: see the module's table; ``saving``: see :class:`Recompute`.
    """
    if layers not in KEPT and (not isinstance(layers, int) or layers < 1):
        raise ValueError(f"layers = {layers!r}: give 1 or more, or one of: {', '.join(KEPT)}")
    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no blocks that can be computed again")
    recompute = Recompute(layers, saving)
    every = layers if isinstance(layers, int) else 1
    for index, block in enumerate(blocks):
        block.gradient_checkpointing = index % every == 0
        block._gradient_checkpointing_func = recompute.run
        recompute.blocks += block.gradient_checkpointing
    return recompute
