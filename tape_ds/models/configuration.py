"""``TapeConfig``: a Llama configuration plus the choice of positional encoding."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig

from tape_ds.errors import raise_if_any
from tape_ds.models import sizes


@strict
class TapeConfig(LlamaConfig):
    """Everything of ``LlamaConfig``, and:

    Attributes:
        position_encoding: a name of :func:`tape_ds.encodings.available`.
        position_options: options of that encoding, see its ``Options`` class; None: its defaults.
        state_dtype: dtype of the position state between layers; None: that of the hidden states.
        attention_backend: "auto" or a name of :func:`tape_ds.attention.available`; the environment variable
            ``TAPE_DS_ATTENTION`` overrides it.
        qk_norm: an RMSNorm on each head of queries and keys before they are rotated, as Qwen3 has them.
        qkv_bias: biases on queries, keys and values, none on outputs, as Qwen2 has them (``attention_bias``: on all
            four).

    RoPE scaling is transformers' own ``rope_parameters``.

    Raises:
        UserError: (a ValueError) naming every unknown name, option or impossible value.
    """

    model_type = "tape"
    # heads exchange position states, see TapeForCausalLM.tensor_parallel_plan
    base_model_tp_plan = None
    base_model_pp_plan = None  # a block returns a position state too
    # transformers before 5.20 else makes one without arguments, and exported code may lack the default encoding
    has_no_defaults_at_init = True

    position_encoding: str = "tape"
    position_options: dict | None = None
    state_dtype: str | None = None
    attention_backend: str = "auto"
    qk_norm: bool = False
    qkv_bias: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        # here, not in a ``validate_`` method: ``@strict`` wraps what those raise
        raise_if_any(sizes.problems(sizes.Fields.of(self)))

    def validate_position(self) -> None:
        """Repeat the checks, as ``@strict`` does before saving."""
        raise_if_any(sizes.problems(sizes.Fields.of(self)))

    def validate_rope(self) -> None:
        """Skip transformers' check, which does not know ``ntk`` and ``yarn_revised``; ours includes it."""
