"""Llama's norm by the fastest form that each device has."""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tape_ds.kernels import rms_norm


class RMSNorm(LlamaRMSNorm):
    """On CUDA by torch's fused kernel, which reads and writes once and keeps no fp32 copy; on a CPU by an operator with
    a short backward."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the normed states; torch's kernel rounds once where Llama's operators round twice."""
        weight = self.weight
        if rms_norm.why_not(hidden_states, weight) is None:
            return rms_norm.rms_norm(hidden_states, weight, self.variance_epsilon)
        if (
            not hidden_states.is_cuda
            or hidden_states.dtype != weight.dtype
            or torch.is_autocast_enabled("cuda")
        ):
            # the kernel takes one dtype, and autocast would make it fp32
            return super().forward(hidden_states)
        return F.rms_norm(hidden_states, weight.shape, weight, self.variance_epsilon)
