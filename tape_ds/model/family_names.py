"""Names of the model families that are taken, and why others are not: plain tables, which any check may read.

What is behind a name is found out in :mod:`tape_ds.model.families`, from a whole configuration.
"""

from collections.abc import Mapping
from typing import Any

QWEN2 = "qwen2"
"""A Llama with biases on queries, keys and values: ``TapeConfig.qkv_bias``."""
BAICHUAN = "baichuan"
"""Of which Baichuan2-7B becomes a Llama."""

SHAPES = ("llama", "mistral", QWEN2, "tape")
"""Model types whose parameters are Llama's, name for name."""
TAKEN = (*SHAPES, BAICHUAN, "gptj", "tape_gptj")
"""Every model type that can be extended or fine-tuned."""

_EXPERTS = "its feed-forward is a mixture of experts"
_GEMMA = "its norms scale by 1 + weight, and its embeddings by the root of the hidden size"
_NORMED_HEADS = "it normalises queries and keys"
REASONS = {
    "falcon": "it runs attention and feed-forward side by side, on one fused projection",
    "gemma": _GEMMA,
    "gemma2": f"{_GEMMA}; it caps its scores",
    "gemma3_text": f"{_GEMMA}; {_NORMED_HEADS}",
    "gpt2": "it learns a vector for every position, which no rotary angle replaces",
    "gpt_neox": "it runs attention and feed-forward side by side, and rotates a part of each head",
    "ministral": "some of its layers attend within a sliding window",
    "mixtral": _EXPERTS,
    "olmo2": f"it norms what a block gives, not what it takes; {_NORMED_HEADS}",
    "phi": "it runs attention and feed-forward side by side, and rotates a part of each head",
    "phi3": "its queries, keys and values are one projection, its gate and up projections another",
    "qwen2_moe": _EXPERTS,
    "qwen3": _NORMED_HEADS,
    "qwen3_moe": f"{_EXPERTS}; {_NORMED_HEADS}",
    "stablelm": "it rotates a part of each head",
}
"""What another family computes that a Llama does not, for those that people ask for."""


def foreign(config: Mapping[str, Any]) -> str | None:
    """The model type that a ``config.json`` names, where it is none that is taken; None also where it names none."""
    name = config.get("model_type")
    return name if isinstance(name, str) and name not in TAKEN else None
