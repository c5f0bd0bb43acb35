"""vLLM: its own reading of a folder, its length, and the rotary module of the first layer that its model class builds.
Linear layers, attention and norms are stand-ins, since their kernels need a GPU.
"""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import common
import numpy as np
import stand_ins
import tables

ELSEWHERE = "aiohttp openai openai_harmony mcp compressed_tensors"
LAYERS = "activation attention fusion layernorm linear logits_processor vocab_parallel_embedding"
MODELS = "adapters interfaces utils"
OTHERS = "compilation.decorators distributed entrypoints model_executor.model_loader reasoning v1.attention"
stand_ins.install(
    *ELSEWHERE.split(),
    *(f"vllm.model_executor.layers.{name}" for name in LAYERS.split()),
    *(f"vllm.model_executor.models.{name}" for name in MODELS.split()),
    *(f"vllm.{name}" for name in OTHERS.split()),
)
stand_ins.without_compiler()
hf = importlib.import_module("vllm.transformers_utils.config")
settings: Any = importlib.import_module("vllm.config.vllm")
lengths = importlib.import_module("vllm.config.model")
CompilationConfig = importlib.import_module("vllm.config").CompilationConfig
CLASSES = {"llama": "LlamaDecoderLayer", "qwen2": "Qwen2DecoderLayer", "qwen3": "Qwen3DecoderLayer"}


def length_of(config: Any, asked: int | None) -> int:
    found = (config.max_position_embeddings, "max_position_embeddings")
    architecture = SimpleNamespace(derived_max_model_len_and_key=found)
    return lengths._get_and_verify_max_len(config, architecture, None, asked, False, None)


def rotary_of(config: Any) -> Any:
    module: Any = importlib.import_module(f"vllm.model_executor.models.{config.model_type}")
    # there is no process group to ask
    module.get_tensor_model_parallel_world_size = lambda: 1
    layer = getattr(module, CLASSES[config.model_type])
    given = SimpleNamespace(
        cache_config=None, quant_config=None, model_config=SimpleNamespace(hf_config=config)
    )
    if config.model_type == "llama":
        return layer(given, "layers.0")
    return layer(config, prefix="layers.0")


def load(folder: Path, flags: str) -> tuple[common.Compute, int]:
    config = hf.get_config(str(folder), trust_remote_code=False)
    asked = re.search(r"--max-model-len (\d+)", flags)
    length = length_of(config, int(asked[1]) if asked else None)
    settings._current_vllm_config = SimpleNamespace(
        compilation_config=CompilationConfig(custom_ops=["none"]),
        # which longrope's module asks for
        model_config=SimpleNamespace(max_model_len=length),
    )
    rotary = rotary_of(config).self_attn.rotary_emb

    def compute(ids: list[int]) -> np.ndarray:
        tables.check_length(ids, length)
        return tables.angles(rotary, len(ids), config.head_dim)

    return compute, length


if __name__ == "__main__":
    common.main("vllm", load, logits=False)
