"""SGLang: its own reading of a folder, its length, and the rotary module of the first layer that its model class
builds. Linear layers, attention and norms are stand-ins, since their kernels need a GPU.
"""

import importlib
import re
import types
from pathlib import Path
from typing import Any

import common
import numpy as np
import stand_ins
import tables

ELSEWHERE = "triton IPython aiohttp torchvision sentencepiece tvm_ffi compressed_tensors gguf vllm"
LAYERS = (
    "activation aux_hidden_states dp_attention dual_gemm layer_boundary layernorm linear logits_processor pooler "
    "quantization radix_attention utils vocab_parallel_embedding"
)
OTHERS = "distributed model_executor model_loader"
stand_ins.install(
    *ELSEWHERE.split(),
    *(f"sglang.srt.layers.{name}" for name in LAYERS.split()),
    *(f"sglang.srt.{name}" for name in OTHERS.split()),
)
stand_ins.without_compiler()
hf = importlib.import_module("sglang.srt.utils.hf_transformers_utils")
CLASSES = {
    "llama": "LlamaDecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
    "olmo2": "Olmo2DecoderLayer",
}


def rotary_of(config: Any) -> Any:
    module: Any = importlib.import_module(f"sglang.srt.models.{config.model_type}")
    # one process on one device, and no other settings
    module.get_parallel = lambda: types.SimpleNamespace(tp_size=1, tp_rank=0, attn_tp_size=1)
    plain = types.SimpleNamespace(rl_on_policy_target=None)
    module.get_exec = lambda: types.SimpleNamespace(deterministic=plain)
    module.append_stages = lambda *stages: stages
    return getattr(module, CLASSES[config.model_type])(config).self_attn.rotary_emb


def load(folder: Path, flags: str) -> tuple[common.Compute, int]:
    config = hf.get_config(str(folder), trust_remote_code=False)
    # as its command line would take it
    asked = re.search(r"--context-length (\d+)", flags)
    length = int(asked[1]) if asked else hf.get_context_length(config)
    rotary = rotary_of(config)

    def compute(ids: list[int]) -> np.ndarray:
        tables.check_length(ids, length)
        return tables.angles(rotary, len(ids), config.head_dim)

    return compute, length


if __name__ == "__main__":
    common.main("sglang", load, logits=False)
