"""A tiny configuration of every decoder in transformers that has rotary positions, or layers that carry a state; the
list is transformers' own."""

import contextlib
import functools
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tape_ds.models import decoder_configuration

VOCABULARY = 97
WINDOW = 16
OWN = ("tape", "tape_gptj")
"""Of this project."""

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # mixtures of experts: a dense block, then one with experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_nextn_predict_layers": 0,
    # latent attention
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 24,
    "v_head_dim": 16,
    # recurrences and short convolutions
    "linear_num_heads": 4,
    "linear_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_d_ssm": 128,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
    "mamba_n_groups": 2,
    "n_groups": 2,
    "mamba_chunk_size": 16,
    "chunk_size": 16,
    "mamba_dt_rank": 4,
    "conv_L_cache": 3,
    # what is drawn in training
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "residual_dropout": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "embedding_dropout": 0.0,
    "router_jitter_noise": 0.0,
    "input_jitter_noise": 0.0,
}
_BOTH = {"layer_types": ["sliding_attention", "full_attention"]}
_RECURRENT = {"layer_types": ["linear_attention", "full_attention"]}
SPECIAL: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"head_dim": 8},
    "bamba": {"attn_layer_indices": [1]},
    "dots1": {"n_shared_experts": 1},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
    },
    "gemma4_text": {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8},
    "granitemoehybrid": _RECURRENT,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "laguna": _BOTH,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {
        "num_layers": 2,
        "head_dim": 8,
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 32,
        "zero_expert_num": 2,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "mellum": _BOTH,
    "mimo_v2_flash": {"head_dim": 24},  # 0.334 of which is an even number
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "ministral": _BOTH,
    "modernbert-decoder": {"local_attention": 2 * WINDOW},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "smollm3": {"no_rope_layer_interval": 2},
    "tape_gptj": {"rotary_dim": 8},
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "n_mamba_heads": 8,
        "mamba_ngroups": 2,
        "use_mem_rope": True,
    },
    "zamba": {"num_hidden_layers": 4, "layer_types": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a family needs that does not follow from its fields; of what it can be, the kinds of layers that it is published
with."""


@functools.cache
def families() -> tuple[str, ...]:
    """Return the types of transformers' language models whose configuration has RoPE parameters, or layers that carry a
    state."""
    return tuple(
        name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in OWN and _is_listed(name)
    )


def _is_listed(name: str) -> bool:
    kind = CONFIG_MAPPING[name]
    if "rope_parameters" in getattr(kind, "__dataclass_fields__", {}):
        return True
    with contextlib.suppress(Exception):  # a few have no default
        default = kind()
        return bool(
            getattr(default, "rope_parameters", None)
        ) or decoder_configuration.carries_state(default)
    return False


def tiny_config(name: str, **changes: Any) -> PreTrainedConfig:
    """Return a configuration with a layer of each kind that the family's own default has."""
    kind = CONFIG_MAPPING[name]
    known = {*kind.__dataclass_fields__, *kind.attribute_map}
    sizes = {field: value for field, value in SIZES.items() if field in known}
    if "kv_lora_rank" in known:
        sizes["num_key_value_heads"] = 4
        sizes.pop("head_dim", None)
    given = {**sizes, **SPECIAL.get(name, {}), **changes}
    if "layer_types" in known and "layer_types" not in given and "block_types" not in given:
        with contextlib.suppress(Exception):
            kinds = sorted(set(kind().layer_types or ()), reverse=True)
            if len(kinds) > 1:
                given |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    return kind(**given)
