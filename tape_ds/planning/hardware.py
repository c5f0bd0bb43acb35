"""GPUs, their links, and the share of a data sheet's figures that training reaches.

Peaks, memory and links are the makers' figures. The shares come from public measurements, named at each constant; none
was taken by this project.
"""

import math
import re
from dataclasses import dataclass, replace

from tape_ds.errors import Problem, UserError, did_you_mean

LINK_SHARE = 0.8
"""Share of a link's one-way bandwidth that a large collective reaches (NCCL's on NVLink: 0.75 to 0.85)."""
MEMORY_SHARE = 0.8
"""Share of the memory bandwidth that operators reach that read and write once."""
HOST_BANDWIDTH = 25e9
"""Bytes/s of the host's memory for each GPU, where the optimizer runs there."""
NVME_BANDWIDTH = 1.6e9
"""Bytes/s between a node's NVMe disks and the host, for each GPU (ZeRO-Infinity, Rajbhandari et al. 2021,
arXiv:2104.07857, Figure 2b)."""


PEAKS: dict[str, float] = {
    r"\bMIG\b": math.nan,  # a slice of a card: its share of the peak is not in the name
    r"\bB200\b": 2250e12,
    r"\bH200 NVL\b": 835e12,
    r"\bG?H200\b": 989e12,
    r"\bH100 PCIe\b": 756e12,
    r"\bH100 NVL\b": 835e12,
    r"\bH100\b": 989e12,
    r"\bA100\b": 312e12,
    r"\bA40\b": 149.7e12,
    r"\bA30\b": 165e12,
    r"\bA10\b": 125e12,
    r"\bRTX 4090$": 165.2e12,
    r"\bL40S\b": 362e12,
    r"\bL40\b": 181e12,
    r"\bL4\b": 121e12,
    r"\bV100.*PCIE\b": 112e12,
    r"\bV100\b": 125e12,
    r"\bT4\b": 65e12,
}
"""Pattern of the name that CUDA gives -> dense 16-bit tensor-core peak, FLOP/s, from the makers' data sheets (without
sparsity); bf16, on V100 and T4 fp16. The first pattern that fits decides."""


def peak_flops(cuda_name: str) -> float | None:
    """Return the dense 16-bit peak in FLOP/s of a GPU by its CUDA name; None where it is not known."""
    found = next(
        (peak for pattern, peak in PEAKS.items() if re.search(pattern, cuda_name)), math.nan
    )
    if math.isnan(found):
        return None
    return found


@dataclass(frozen=True)
class Rates:
    """Shares of an architecture's 16-bit peak that training reaches."""

    linear: float
    """Matrix products: fitted, after subtracting attention and memory-bound operators, to llm-foundry's MPT-7B at
    4,096 and 8,192 tokens (A100, H100) and to PoSE's own hours (V100), see ``tests/planning/test_published.py``."""
    attention: float
    """Causal attention over long sequences, 128 columns a head."""
    packed: float
    """torch's call for packed sequences, which only has FlashAttention-2's kernel."""
    chip: str
    """As the table of attention backends names it."""


# FlashAttention-2's own benchmark at 8,192 tokens, forward and backward (github.com/Dao-AILab/flash-attention, assets):
# 182 TFLOP/s on an A100, 308 on an H100. cuDNN's, which torch prefers on Hopper: 529 and 518 (FlashAttention-3, Shah et
# al. 2024, arXiv:2407.08608, figures 5 and 6). A V100 has neither: taken as a third of its peak, as xformers' reaches.
_VOLTA = Rates(0.68, 0.3, 0.3, "sm_70")
_AMPERE = Rates(0.72, 0.58, 0.58, "sm_80")
_HOPPER = Rates(0.56, 0.53, 0.31, "sm_90")
# No published training step fits either: Ada's are Ampere's, Blackwell's Hopper's.
_ADA = replace(_AMPERE, chip="sm_89")
_BLACKWELL = replace(_HOPPER, chip="sm_100")


@dataclass(frozen=True)
class Gpu:
    """One GPU and its share of the node around it; bandwidths in bytes/s, those of links one way."""

    name: str
    cuda_name: str
    """Pattern of its CUDA name."""
    memory: float
    """Bytes that CUDA can give."""
    peak: float
    """Dense 16-bit FLOP/s, of :data:`PEAKS`."""
    bandwidth: float
    """To the GPU's memory."""
    link: float
    """To the others of its node: NVLink, or PCIe where there is none."""
    network: float
    """To other nodes, its share of the node's adapters."""
    rates: Rates
    host_link: float = 25e9
    """Between its memory and the host's."""
    host_memory: float = 128e9
    """Bytes of the host's memory for each GPU."""
    per_node: int = 8
    """GPUs of a node."""


GPUS = {
    gpu.name: gpu
    for gpu in (
        # "NVIDIA V100 Tensor Core GPU" data sheet, SXM2
        Gpu(
            "v100-32",
            r"V100-SXM.*32GB",
            34.1e9,
            PEAKS[r"\bV100\b"],
            0.9e12,
            150e9,
            12.5e9,
            _VOLTA,
            12e9,
            64e9,
        ),
        # "NVIDIA A100 Tensor Core GPU" data sheet, SXM4
        Gpu("a100-40", r"A100.*40GB", 42.4e9, PEAKS[r"\bA100\b"], 1.56e12, 300e9, 25e9, _AMPERE),
        Gpu("a100-80", r"A100.*80GB", 85.1e9, PEAKS[r"\bA100\b"], 2.04e12, 300e9, 25e9, _AMPERE),
        # "NVIDIA Ada GPU Architecture" whitepaper, appendix A: FP16 and BF16 with FP32 accumulate; PCIe 4.0 x16
        Gpu("rtx4090", r"RTX 4090$", 25.3e9, PEAKS[r"\bRTX 4090$"], 1.008e12, 32e9, 12.5e9, _ADA),
        # "NVIDIA L40S" data sheet; PCIe 4.0 x16, 64 GB/s both ways together
        Gpu("l40s", r"\bL40S$", 47.8e9, PEAKS[r"\bL40S\b"], 0.864e12, 32e9, 25e9, _ADA),
        # "NVIDIA H100 Tensor Core GPU" and "NVIDIA H200 Tensor Core GPU" data sheets, SXM5
        Gpu(
            "h100-80",
            r"H100 80GB HBM3",
            85.0e9,
            PEAKS[r"\bH100\b"],
            3.35e12,
            450e9,
            50e9,
            _HOPPER,
            50e9,
            256e9,
        ),
        Gpu(
            "h200",
            r"\bH200$",
            150.1e9,
            PEAKS[r"\bG?H200\b"],
            4.8e12,
            450e9,
            50e9,
            _HOPPER,
            50e9,
            256e9,
        ),
        # "NVIDIA GH200 Grace Hopper Superchip" data sheet, 96 GB of HBM3 and 480 GB of LPDDR5X, each a separate node;
        # NVLink-C2C: 900 GB/s both ways together
        Gpu(
            "gh200",
            r"\bGH200 480GB",
            101.5e9,
            PEAKS[r"\bG?H200\b"],
            4e12,
            450e9,
            50e9,
            _HOPPER,
            450e9,
            480e9,
            1,
        ),
        # "NVIDIA DGX B200" data sheet: 1,440 GB and 64 TB/s for 8; "NVIDIA HGX" page: 36 PFLOP/s for 8, with sparsity
        Gpu(
            "b200",
            r"\bB200\b",
            191.5e9,
            PEAKS[r"\bB200\b"],
            8.0e12,
            900e9,
            50e9,
            _BLACKWELL,
            50e9,
            256e9,
        ),
    )
}


def find(name: str) -> Gpu:
    if name not in GPUS:
        raise UserError(Problem("--gpu", name, "unknown GPU", did_you_mean(name, GPUS)))
    return GPUS[name]


def of_device(cuda_name: str, memory: float) -> Gpu | None:
    """Return the GPU of that CUDA name, with its real bytes; None if the planner does not know it."""
    found = next((gpu for gpu in GPUS.values() if re.search(gpu.cuda_name, cuda_name)), None)
    if found is None:
        return None
    return replace(found, memory=memory)


def gpu_at_hand() -> Gpu | None:
    """Return the GPU of this process with its real memory, and its share of the host's; None on a CPU, or for a GPU
    that the planner does not know."""
    import psutil
    import torch

    if not torch.cuda.is_available():
        return None
    found = of_device(
        torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    )
    host = psutil.virtual_memory().total / torch.cuda.device_count()
    if found is None:
        return None
    return replace(found, host_memory=host, per_node=torch.cuda.device_count())
