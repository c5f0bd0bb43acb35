"""Parameters, multiplications and floating-point operations of a model, from its configuration alone.

A multiply-add (MAC) is one multiplication with its addition, and 2 floating-point operations (FLOPs). What no matrix
unit sees (norms, rotations, activations, the softmax) is not counted. Two conventions for attention:

- causal: a token sees half of the others on average, which is what a fused kernel computes, and what speeds and model
  FLOPs utilisation are measured with here;
- full: the whole T x S matrix, as profilers count a forward with a mask, and as the TAPE paper's Table 3 counts.
"""

from typing import TypeAlias

import torch
from transformers import PreTrainedConfig

from tape_ds.encodings import registry
from tape_ds.kernels import flop_formulas  # noqa: F401  (torch's counters then know the operators)
from tape_ds.models import decoder_shape
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.llama import TapeForCausalLM

Config: TypeAlias = TapeConfig | PreTrainedConfig

MEBI = 2**20
"""The "M" in which the TAPE paper (and much of this field) counts parameters."""


def position_parameters(config: TapeConfig) -> int:
    with torch.device("meta"):
        layers = [registry.build_layer(config, index) for index in range(config.num_hidden_layers)]
        parts = torch.nn.ModuleList([registry.build(config), *layers])
    return sum(weight.numel() for weight in parts.parameters())


def position_multiplications(config: TapeConfig, layer_idx: int, keys: float) -> float:
    with torch.device("meta"):
        return registry.build_layer(config, layer_idx).multiplications_per_token(keys)


def parameters(config: TapeConfig) -> int:
    """Return all parameters; an output head tied to the embeddings counts once."""
    with torch.device("meta"):
        return TapeForCausalLM(config).num_parameters()


def multiply_adds(config: Config, length: int, causal: bool = True, *, attention_span: float | None = None) -> float:
    """MACs of one forward over one sequence of ``length`` tokens, output head included.

    ``attention_span``: length of the sequences that attention works on, where it is less than the whole sequence, see
    :func:`tape_ds.attention.shifted_groups.attention_span`.
    """
    if not isinstance(config, TapeConfig):
        return decoder_shape.multiply_adds(config, length, causal)
    query = config.num_attention_heads * config.head_dim
    key = config.num_key_value_heads * config.head_dim
    span = float(length) if attention_span is None else attention_span
    keys = span / 2 if causal else span
    projections = config.hidden_size * (2 * query + 2 * key)
    feed_forward = 3 * config.hidden_size * config.intermediate_size
    attention = 2 * query * keys  # scores and values
    layers = config.num_hidden_layers * (projections + feed_forward + attention)
    position = sum(position_multiplications(config, i, keys) for i in range(config.num_hidden_layers))
    return length * (layers + position + config.hidden_size * config.vocab_size)


def forward_flops_per_token(config: Config, length: int, *, attention_span: float | None = None) -> float:
    """FLOPs of one forward per token, averaged over a causal document of ``length`` tokens."""
    return 2.0 * multiply_adds(config, length, attention_span=attention_span) / length


def training_flops_per_token(
    config: Config, length: int, trained_share: float, *, attention_span: float | None = None
) -> float:
    """FLOPs of forward and backward, per token, without recomputation.

    The backward needs as much as the forward for the gradients of activations, and again as much for those of weights,
    of which only ``trained_share`` (0 to 1, by parameter count) is computed.
    """
    return forward_flops_per_token(config, length, attention_span=attention_span) * (2.0 + trained_share)
