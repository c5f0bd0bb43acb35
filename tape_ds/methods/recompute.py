"""Blocks that are computed again in the backward instead of being remembered (Chen et al. 2016, arXiv:1604.06174).

transformers' ``GradientCheckpointingLayer`` has one switch a block and one function that carries it out; here is that
function. With ``selective`` a block keeps attention's output too (Korthikanti et al. 2022, arXiv:2205.05198, Section
5): the work of attention grows with the square of the length, its output only with the length.
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

from tape_ds.methods.modules import modules_of

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
"""Operators that hold a whole softmax attention: torch's, FlashAttention's, ours. FlexAttention is compiled code, which
dispatches no such operator."""


class Recompute:
    """The recomputed blocks of one model; ``saving`` makes the context under which a block's inputs are kept."""

    def __init__(
        self, *, selective: bool, saving: Callable[[], AbstractContextManager[Any]] = nullcontext
    ):
        self.selective = selective
        self.saving = saving
        self.kept = 0
        """Outputs of attention that were kept so far instead of being computed again."""
        self.blocks = 0

    def run(self, block: Callable[..., Any], *inputs: Any) -> Any:
        """Return ``block(*inputs)``, recomputed in the backward."""
        # the reentrant form loses a position state's gradients
        options: dict[str, Any] = {"use_reentrant": False}
        if self.selective:
            options["context_fn"] = functools.partial(
                create_selective_checkpoint_contexts, self._policy
            )
        with self.saving():
            return checkpoint(block, *inputs, **options)

    def _policy(
        self, context: SelectiveCheckpointContext, operator: Any, *_: Any, **__: Any
    ) -> CheckpointPolicy:
        if operator.name() not in ATTENTION:
            return CheckpointPolicy.PREFER_RECOMPUTE
        self.kept += not context.is_recompute
        return CheckpointPolicy.MUST_SAVE


def use_recompute(
    model: nn.Module,
    layers: Literal[1, "selective"],
    saving: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Recompute:
    """Make every block of ``model`` (wrapped by peft or not, changed in place) compute itself again in the backward.

    Gradients are those of a model that remembers everything, bit for bit: the same operators run on the same numbers,
    random ones included. Raises ValueError for a model without blocks that can be computed again.
    """
    blocks = modules_of(model, GradientCheckpointingLayer)
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no blocks that can be computed again")
    recompute = Recompute(selective=layers == "selective", saving=saving)
    for block in blocks:
        block.gradient_checkpointing = True
        block._gradient_checkpointing_func = recompute.run
    recompute.blocks = len(blocks)
    return recompute
