"""GPUs, what connects them, and how much of a data sheet's figures training gets from them.

Peaks, memory and links are the makers' figures. What is reached of them comes from public measurements, named at each
constant; none was taken by this project.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tape_ds.errors import Problem, UserError, did_you_mean

LINK_SHARE = 0.8
"""Of a link's one-way bandwidth that a large collective reaches (NCCL's bus bandwidth is 0.75 to 0.85 of NVLink's)."""
MEMORY_SHARE = 0.8
"""Of the memory bandwidth that operators reach which read and write once."""
HOP_SECONDS = {"node": 2e-6, "network": 6e-6}
"""Latency of one hop of a ring, within a node and between nodes: what many GPUs pay however small the message."""
NVME_BANDWIDTH = 1.6e9
"""Bytes/s between a node's NVMe disks and the host, for each GPU (ZeRO-Infinity, Rajbhandari et al. 2021,
arXiv:2104.07857, Figure 2b)."""
LAUNCH_SECONDS = 25e-6
"""Of a collective that reaches nobody yet: its launch, and the wait for the slowest rank."""


Rates = Mapping[int, Mapping[int, tuple[float, float]]]


@dataclass(frozen=True)
class Gpu:
    """One GPU and its share of the node around it."""

    name: str
    cuda_name: str
    """Pattern of what CUDA calls it."""
    memory: float
    """Bytes that CUDA can give."""
    peak: float
    """Dense 16-bit FLOP/s; the same number as ``training.metrics`` divides by, which a test holds."""
    bandwidth: float
    """Bytes/s of its own memory."""
    nvlink: float
    """Bytes/s to the others of its node, one way."""
    network: float
    """Bytes/s to other nodes, one way, its share of the node's adapters."""
    linear_share: float
    """Of the peak that the matrix products of a training step reach."""
    attention: Rates
    """Head size -> tokens -> FLOP/s of causal attention, (forward, backward), by the kernel that torch picks there."""
    host_link: float = 25e9
    """Bytes/s between its memory and the host's, one way."""
    host_memory: float = 128e9
    """Bytes of the host's memory for each GPU."""
    per_node: int = 8
    """GPUs of a node."""
    sixteen_bit: str = "bf16"
    """The 16-bit format that it computes in."""

    def attention_rates(self, head_size: int, tokens: float) -> tuple[float, float]:
        """(forward, backward) FLOP/s of causal attention at that length, between the measured ones by its logarithm."""
        sizes = self.attention[min(self.attention, key=lambda size: abs(size - head_size))]
        lengths = sorted(sizes)
        tokens = min(max(tokens, lengths[0]), lengths[-1])
        upper = next(length for length in lengths if length >= tokens)
        lower = max((length for length in lengths if length <= tokens), default=upper)
        if upper == lower:
            return sizes[upper]
        share = math.log(tokens / lower) / math.log(upper / lower)
        first, second = (low + share * (high - low) for low, high in zip(sizes[lower], sizes[upper], strict=True))
        return first, second


def _together(**rates: float) -> dict[int, tuple[float, float]]:
    """TFLOP/s of forward and backward in one number, for both; ``k1`` is 1,024 tokens."""
    return {1024 * int(name[1:]): (rate * 1e12, rate * 1e12) for name, rate in rates.items()}


_FA2_A100 = {64: _together(k1=119, k4=156, k8=165, k16=171), 128: _together(k1=133, k4=173, k8=182, k16=189)}
"""FlashAttention-2's own benchmark, A100-80 SXM, forward + backward, causal
(github.com/Dao-AILab/flash-attention, assets/flash2_a100_fwd_bwd_benchmark.png)."""
_FA2_H100 = {64: _together(k1=192, k4=257, k8=273, k16=284), 128: _together(k1=221, k4=294, k8=308, k16=328)}
"""The same on an H100 SXM (assets/flash2_h100_fwd_bwd_benchmark.png)."""
CUDNN_ON_HOPPER = {
    64: {1024: (330e12, 348e12), 4096: (400e12, 417e12), 16384: (430e12, 433e12)},
    128: {1024: (410e12, 408e12), 4096: (518e12, 499e12), 8192: (529e12, 518e12), 16384: (535e12, 522e12)},
}
"""cuDNN's, which torch prefers on Hopper (FlashAttention-3, Shah et al. 2024, arXiv:2407.08608, figures 5 and 6: causal
forward of 128; backward of 64 and 128 without a mask; the forward of 64 is taken to be as fast as its backward)."""
_CUTLASS_V100 = {64: _together(k1=30, k16=35), 128: _together(k1=30, k16=40)}
"""A V100 has no FlashAttention-2. Taken as a third of its peak, as xformers' kernel reaches on an A100 at 64."""

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-80", r"A100.*80GB", 85.1e9, 312e12, 2.04e12, 300e9, 25e9, 0.72, _FA2_A100),
        Gpu("a100-40", r"A100.*40GB", 42.4e9, 312e12, 1.56e12, 300e9, 25e9, 0.72, _FA2_A100),
        Gpu("h100-80", r"H100 80GB HBM3", 85.0e9, 989e12, 3.35e12, 450e9, 50e9, 0.56, CUDNN_ON_HOPPER, 50e9, 256e9),
        Gpu("h200", r"\bH200$", 150.1e9, 989e12, 4.8e12, 450e9, 50e9, 0.56, CUDNN_ON_HOPPER, 50e9, 256e9),
        Gpu(
            *("v100-32", r"V100-SXM.*32GB", 34.1e9, 125e12, 0.9e12, 150e9, 12.5e9, 0.68, _CUTLASS_V100, 12e9, 64e9),
            sixteen_bit="fp16",
        ),
    )
}
"""``linear_share`` is fitted, once attention and what is bound by memory have their time, to llm-foundry's MPT-7B rows
at 4,096 and 8,192 tokens (A100-80, H100-80) and to PoSE's own hours (V100-32), see ``published.py``; what else is
published is then a prediction. H200 has H100's compute, and its share."""
FA2_ON_HOPPER: Rates = _FA2_H100
"""For figures that were published before torch took cuDNN there."""


def find(name: str) -> Gpu:
    """The GPU of that name.

    Raises:
        UserError: there is none.
    """
    if name not in GPUS:
        raise UserError(Problem("gpu", name, "unknown GPU", did_you_mean(name, GPUS)))
    return GPUS[name]


def of_device(cuda_name: str, memory: float) -> Gpu | None:
    """The GPU that CUDA calls ``cuda_name``, with the bytes it really has; None where it is none of these."""
    found = next((gpu for gpu in GPUS.values() if re.search(gpu.cuda_name, cuda_name)), None)
    return None if found is None else replace(found, memory=memory)
