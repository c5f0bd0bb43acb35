"""``ScaledGPTJConfig``: GPT-J's configuration with RoPE parameters, which transformers' own does not have."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import GPTJConfig, PreTrainedConfig

from tape_ds.encodings import scaling
from tape_ds.errors import Problem, raise_if_any

_FORMER = ("position_encoding", "position_options", "attention_backend")
"""Fields of older folders: the one encoding, and an attention backend, which is chosen when a model is loaded."""


@strict
class ScaledGPTJConfig(GPTJConfig):
    """Everything of ``GPTJConfig``, and:

    Attributes:
        rope_parameters: see :mod:`tape_ds.encodings.scaling`; None: GPT-J's own.

    Raises:
        UserError: (a ValueError) naming every impossible value.
    """

    model_type = "tape_gptj"
    attribute_map = {**GPTJConfig.attribute_map, "attention_dropout": "attn_pdrop"}

    rope_parameters: dict | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**{name: value for name, value in kwargs.items() if name not in _FORMER})
        self.validate_rope()

    @property
    def intermediate_size(self) -> int:
        return self.n_inner if self.n_inner is not None else 4 * self.n_embd

    def validate_rope(self) -> None:
        """Skip transformers' check, which does not know ``ntk`` and ``yarn_revised``."""
        problems = scaling.check(self.rope_parameters or {})
        if scaling.is_dynamic(self.rope_parameters or {}):
            remedy = "choose linear, ntk, yarn or yarn_revised"
            problems.append(Problem("rope_parameters.rope_type", "dynamic", "not computed for GPT-J", remedy))
        columns, left = divmod(self.n_embd, self.n_head)
        if left:
            problems.append(Problem("n_head", self.n_head, f"does not divide n_embd = {self.n_embd}", "give a divisor"))
        elif self.rotary_dim % 2 or not 0 < self.rotary_dim <= columns:
            wrong = f"not an even number from 2 to the {columns} columns of a head"
            problems.append(Problem("rotary_dim", self.rotary_dim, wrong, "give the columns that are rotated"))
        raise_if_any(problems)


def with_rope(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a GPT-J's configuration with the RoPE parameters that it has; any other as it is."""
    if type(config) is not GPTJConfig:
        return config
    fields = {name: value for name, value in config.to_dict().items() if name != "model_type"}
    return ScaledGPTJConfig(**fields, name_or_path=config.name_or_path)
