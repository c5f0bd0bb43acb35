"""Small models of the three architectures whose attention is sharp, so that a wrong angle shows in every logit."""

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

WINDOW = "original_max_position_embeddings"
LENGTH = 1024
ROWS = 512
SCALINGS = {
    "none": {"rope_type": "default", "rope_theta": 1e4},
    "base": {"rope_type": "default", "rope_theta": 25_198.5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, WINDOW: 256},
    "yarn_own_factor": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        WINDOW: 256,
        "attention_factor": 1.0,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        WINDOW: 256,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"head_dim": 32}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 64}),
}
CASES = [
    (kind, scaling)
    for kind in KINDS
    for scaling in SCALINGS
    if kind == "llama" or scaling != "llama3"
]
"""llama.cpp applies llama3 to a Llama alone."""


def make(folder, kind, rope_parameters, **sizes):
    """Save a model in ``folder``; return it."""
    config_class, model_class, own = KINDS[kind]
    fields = {
        "vocab_size": ROWS,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": LENGTH,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    fields |= own
    fields |= sizes
    with torch.device("meta"):
        model = model_class(config_class(**fields, rope_parameters=dict(rope_parameters)))
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):
                weight.copy_(1 + 0.2 * drawn)
            elif weight.dim() == 1:
                weight.copy_(0.25 * drawn)
            else:
                weight.copy_((0.1 if "embed" in name else 0.12) * drawn)
    model.tie_weights()
    model.save_pretrained(folder)
    return model.eval()
