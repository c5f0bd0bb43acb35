"""Sizes of published models, for plans and checks on a machine without the models."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from tape_ds.errors import Problem, UserError, did_you_mean
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.files import hub
from tape_ds.models.gptj import ScaledGPTJConfig
from tape_ds.registration import register

_COLUMNS = (
    *(
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    ),
    *("vocab_size", "max_position_embeddings", "tie_word_embeddings", "rope_theta"),
)
LLAMAS: Mapping[str, tuple[float, ...]] = {
    "huggyllama/llama-7b": (4096, 11008, 32, 32, 32, 32_000, 2048, False, 1e4),
    "meta-llama/Llama-2-7b-hf": (4096, 11008, 32, 32, 32, 32_000, 4096, False, 1e4),
    "meta-llama/Llama-2-13b-hf": (5120, 13824, 40, 40, 40, 32_000, 4096, False, 1e4),
    "meta-llama/Llama-2-70b-hf": (8192, 28672, 80, 64, 8, 32_000, 4096, False, 1e4),
    "meta-llama/Meta-Llama-3-8B": (4096, 14336, 32, 32, 8, 128_256, 8192, False, 5e5),
    "meta-llama/Meta-Llama-3-70B": (8192, 28672, 80, 64, 8, 128_256, 8192, False, 5e5),
    "baichuan-inc/Baichuan2-7B-Base": (4096, 11008, 32, 32, 32, 125_696, 4096, False, 1e4),
    **dict.fromkeys(
        ("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        (576, 1536, 30, 9, 3, 49_152, 8192, True, 1e5),
    ),
}
"""Published sizes by the names that recipes have for them (the models' own ``config.json``). Touvron et al. 2023,
arXiv:2302.13971 and arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783; Yang et al. 2023, arXiv:2309.10305;
Allal et al. 2025, arXiv:2502.02737."""
GPT_J = "EleutherAI/gpt-j-6b"
"""Its sizes are the defaults of its class."""


def known(name: str) -> bool:
    name, _ = hub.split(name)
    return name in LLAMAS or name == GPT_J


def configuration(name: str, **changes: Any) -> TapeConfig | PreTrainedConfig:
    """Return the configuration of a published model; ``changes`` (``position_encoding``, ...) to a Llama's."""
    name, _ = hub.split(name)
    if name == GPT_J:
        # a model's family is looked up in transformers' table
        register()
        return ScaledGPTJConfig()
    if name not in LLAMAS:
        remedy = f"{did_you_mean(name, LLAMAS)}, or --model_config FILE"
        raise UserError(Problem("model", name, "its configuration is not at hand", remedy))
    sizes: dict[str, Any] = dict(zip(_COLUMNS, LLAMAS[name], strict=True))
    sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": sizes.pop("rope_theta")}
    return TapeConfig(**{"position_encoding": "rope", **sizes, **changes})
