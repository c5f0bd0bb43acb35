"""Validate model sizes without importing torch or transformers.

``TapeConfig`` calls this too. It covers transformers' own checks of these fields in ``LlamaConfig``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from tape_ds import attention, encodings
from tape_ds.errors import Problem, did_you_mean

STATE_DTYPES = ("float32", "float16", "bfloat16")
_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Fields of a ``TapeConfig`` that can contradict each other."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    initializer_range: float = 0.02
    rope_parameters: Mapping[str, Any] | None = None
    position_encoding: str = "tape"
    position_options: Mapping[str, Any] | None = None
    state_dtype: str | None = None
    attention_backend: str = "auto"
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    attention_dropout: float | None = 0.0

    @classmethod
    def of(cls, config: Any) -> Self:
        """Return these fields of a ``TapeConfig``."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})


def problems(of: Fields) -> list[Problem]:
    given = {name: getattr(of, name) for name in _COUNTS}
    found = [
        Problem(name, value, "no whole number of 1 or more", "give 1 or more")
        for name, value in given.items()
        if type(value) is not int or value < 1
    ]
    if not found:
        # frozen, and attributes of the encodings' protocol can be set
        config: Any = of
        found = encodings.problems_with(config)
        if of.hidden_size % of.num_attention_heads:
            wrong = f"not divisible by num_attention_heads = {of.num_attention_heads}"
            found.append(Problem("hidden_size", of.hidden_size, wrong, "choose a multiple"))
        if of.head_dim % 2:
            found.append(
                Problem("head_dim", of.head_dim, "odd", "rotary pairs need an even head size")
            )
        if of.num_attention_heads % of.num_key_value_heads:
            wrong = f"does not divide the {of.num_attention_heads} attention heads"
            remedy = "choose a divisor of num_attention_heads"
            found.append(Problem("num_key_value_heads", of.num_key_value_heads, wrong, remedy))
    if of.state_dtype is not None and of.state_dtype not in STATE_DTYPES:
        found.append(
            Problem(
                "state_dtype",
                of.state_dtype,
                "unknown dtype",
                did_you_mean(of.state_dtype, STATE_DTYPES),
            )
        )
    found += attention.check_backend(of.attention_backend)
    if not isinstance(of.initializer_range, int | float) or not 0 <= of.initializer_range <= 1:
        found.append(
            Problem(
                "initializer_range",
                of.initializer_range,
                "out of range",
                "give a number from 0 to 1",
            )
        )
    if of.qk_norm and of.mlp_bias:
        found.append(
            Problem(
                "qk_norm", True, "together with mlp_bias it is no known family's", "mlp_bias: false"
            )
        )
    for name in ("attention_bias", "mlp_bias", "qk_norm"):
        if of.qkv_bias and getattr(of, name):
            remedy = f"{name}: false, or attention_bias without qkv_bias"
            found.append(
                Problem("qkv_bias", True, f"together with {name} it is no known family's", remedy)
            )
    if of.attention_dropout:
        found.append(
            Problem(
                "attention_dropout", of.attention_dropout, "no backend computes it", "set it to 0"
            )
        )
    return found
