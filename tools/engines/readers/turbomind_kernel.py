"""The frequencies that TurboMind, LMDeploy's C++ engine, turns heads by; its kernel needs a GPU."""

import math
from typing import Any

import numpy as np


def frequencies(rope: Any, kind: str, tokens: int) -> np.ndarray:
    """Return radians a token [F] of a text of ``tokens``, as LMDeploy's C++ sources compute them from these fields:
    ``models/attention_weight.cc``, ``models/llama/unified_attention_layer.cc``,
    ``kernels/attention/rotary_embedding.h``.
    """
    # NTK's: the base grows with the text, as transformers has it
    base = rope.base
    if kind == "dynamic" and tokens > rope.max_position_embeddings:
        longer = rope.factor * tokens / rope.max_position_embeddings - (rope.factor - 1)
        base *= longer ** (rope.dim / (rope.dim - 2))
    indices = np.arange(0, rope.dim, 2)
    plain = base ** (-indices / rope.dim)
    if kind == "linear":
        return plain / rope.factor
    if kind == "llama3":
        width = rope.llama3_high_freq_factor - rope.llama3_low_freq_factor
        turns = rope.llama3_original_max_position_embeddings * plain / (2 * math.pi)
        # 0: turns too rarely to be left as it is; 1: turns often enough
        smooth = np.clip((turns - rope.llama3_low_freq_factor) / width, 0, 1)
        return (1 - smooth) * plain / rope.factor + smooth * plain
    if kind == "yarn":
        low = math.floor(_turned(rope, rope.yarn_beta_fast))
        high = math.ceil(_turned(rope, rope.yarn_beta_slow))
        # the kernel rounds the bounds, as YaRN does unless truncate is false
        low = max(low, 0)
        high = min(high, rope.dim - 1)
        ramp = np.clip((indices / 2 - low) / (high - low or 0.001), 0, 1)
        return plain * (1 - ramp * (1 - 1 / rope.factor))
    return plain


def _turned(rope: Any, turns: float) -> float:
    """Return the index of the frequency that turns so often within the length."""
    angle = rope.max_position_embeddings / (turns * 2 * math.pi)
    return rope.dim * math.log(angle) / (2 * math.log(rope.base))
