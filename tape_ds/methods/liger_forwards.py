"""Liger's Triton kernels in a model that is built: RMSNorm, SwiGLU, and the loss of long batches (arXiv:2410.10989).

Optional, for CUDA (``pip install liger-kernel``). Only forwards are replaced, module by module, and call Liger's public
functions: parameters, their names, classes and hooks stay as they are, so sharding, adapters and checkpoints do not
notice.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from tape_ds.methods.modules import in_words, modules_of
from tape_ds.models.output_head import OutputHead

FUSED_FROM = 16_384
"""Tokens of a micro-batch from which the fused loss is used. By Liger's own measurements (A100, hidden size 4,096,
128,256 entries) it takes 1.5 times as long as the plain loss at 8,192 tokens, 1.25 times at 16,384."""


def use_liger(model: nn.Module) -> list[str]:
    """Replace the forwards of every Llama norm and feed-forward and the long losses of every output head; return what
    was replaced, for the log.

    To be called last, once adapters are in place: a copy that peft trains in place of a module is another module.
    """
    from liger_kernel.transformers import functional

    def norm_forward(self: LlamaRMSNorm, hidden: Tensor) -> Any:
        # Not in place: that would overwrite the gradient which a hook on the norm's output may keep.
        return functional.liger_rms_norm(hidden, self.weight, self.variance_epsilon, in_place=False)

    def mlp_forward(self: LlamaMLP, x: Tensor) -> Any:
        return self.down_proj(functional.liger_swiglu(self.gate_proj(x), self.up_proj(x)))

    norms = modules_of(model, LlamaRMSNorm)
    mlps = modules_of(model, LlamaMLP)
    # the kernel has SiLU built in
    mlps = [mlp for mlp in mlps if mlp.config.hidden_act in ("silu", "swish")]
    heads = modules_of(model, OutputHead)
    for module in norms:
        module.forward = MethodType(norm_forward, module)
    for module in mlps:
        module.forward = MethodType(mlp_forward, module)

    def loss(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, ignore_index: int) -> Any:
        # A weight's gradient summed over chunks in bf16 would lose the later ones.
        options = {"ignore_index": ignore_index, "reduction": "sum", "accum_dtype": torch.float32}
        return functional.liger_fused_linear_cross_entropy(
            hidden_ND, weight_VD, targets_N, **options
        )

    for head in heads:
        head.fused_loss = loss
        head.fused_from = FUSED_FROM
    return in_words(
        {"RMSNorm": norms, "SwiGLU": mlps, f"cross-entropy from {FUSED_FROM:,} tokens": heads}
    )
