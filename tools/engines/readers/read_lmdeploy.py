"""LMDeploy: its own reading of a folder, and the rotary module that its PyTorch engine builds (``--backend pytorch``).

Without that flag a Llama, Qwen2 or Qwen3 runs in TurboMind: its own reading of a folder is real here too, and its
kernel, which needs a GPU, is computed by :mod:`turbomind_kernel`.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import common
import numpy as np
import stand_ins
import torch
import turbomind_kernel

stand_ins.install("mmengine", "shortuuid", "triton", "lmdeploy.turbomind._turbomind")
stand_ins.without_compiler()

from lmdeploy.hf_configs import config_from_pretrained  # noqa: E402
from lmdeploy.pytorch.backends.default.op_backend import DefaultOpsBackend  # noqa: E402
from lmdeploy.pytorch.models.module_map import MODULE_MAP  # noqa: E402
from lmdeploy.pytorch.nn import rotary_embedding  # noqa: E402
from lmdeploy.turbomind.models import utils as turbomind  # noqa: E402

# CUDA's backend has no rotary module
rotary_embedding.get_backend = lambda: DefaultOpsBackend
rotary_embedding.get_build_model_context = lambda: SimpleNamespace(enable_deterministic=False)


def load(folder: Path, flags: str) -> tuple[common.Compute, None]:
    config = config_from_pretrained(str(folder))
    architecture = config.architectures[0]
    if architecture not in MODULE_MAP:
        raise RuntimeError(f"no model class for {architecture}")
    # the table's flag for it: --backend pytorch
    if flags:
        return of_pytorch(config), None
    return of_turbomind(config), None


def of_pytorch(config: Any) -> common.Compute:
    rotary = rotary_embedding.build_rotary_embedding_from_config(config)

    def compute(ids: list[int]) -> np.ndarray:
        cosines, sines = rotary(torch.zeros(1), torch.arange(len(ids))[None])
        half = cosines.shape[-1] // 2
        return torch.cat([cosines[0, :, :half], sines[0, :, :half]], -1).numpy()

    return compute


def of_turbomind(config: Any) -> common.Compute:
    rope: Any = SimpleNamespace()
    read, length = turbomind.parse_rope_param(config, config.head_dim)
    turbomind.copy_rope_config(rope, read, length)

    def compute(ids: list[int]) -> np.ndarray:
        angles = np.arange(len(ids))[:, None] * turbomind_kernel.frequencies(
            rope, read.type, len(ids)
        )
        # its kernel multiplies what it turns by it
        factor = rope.yarn_attention_factor if read.type == "yarn" else 1.0
        return np.concatenate([np.cos(angles), np.sin(angles)], -1).astype(np.float32) * factor

    return compute


if __name__ == "__main__":
    common.main("lmdeploy", load, logits=False)
