"""Parameters, multiplications and floating-point operations of a model, from its configuration alone.

A multiply-add (MAC) is one multiplication with its addition, and 2 floating-point operations (FLOPs). What no matrix
unit sees (norms, rotations, activations, the softmax) is not counted. Two conventions for attention:

- causal: a token sees half of the others on average, which is what a fused kernel computes, and what speeds and model
  FLOPs utilisation are measured with here;
- full: the whole T x S matrix, as profilers count a forward with a mask, and as the TAPE paper's Table 3 counts.
"""

import torch

from tape_ds.kernels import flop_formulas  # noqa: F401  (torch's counters then know the operators)
from tape_ds.model import positions
from tape_ds.model.configuration import TapeConfig

MEBI = 2**20
"""The "M" in which the TAPE paper (and much of this field) counts parameters."""


def position_parameters(config: TapeConfig) -> int:
    """Parameters of the positional encoding."""
    with torch.device("meta"):
        layers = [positions.build_layer(config, index) for index in range(config.num_hidden_layers)]
        parts = torch.nn.ModuleList([positions.build(config), *layers])
    return sum(weight.numel() for weight in parts.parameters())


def parameters(config: TapeConfig) -> int:
    """All parameters; an output head tied to the embeddings counts once."""
    query, key = _widths(config)
    hidden, biased = config.hidden_size, int(config.attention_bias)
    attention = hidden * (2 * query + 2 * key) + biased * (query + 2 * key + hidden)
    feed_forward = 3 * hidden * config.intermediate_size
    if config.mlp_bias:
        feed_forward += 2 * config.intermediate_size + hidden
    layers = config.num_hidden_layers * (attention + feed_forward + 2 * hidden)
    embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    return layers + hidden + embeddings + position_parameters(config)


def multiply_adds(config: TapeConfig, length: int, causal: bool = True) -> float:
    """MACs of one forward over one row of ``length`` tokens, output head included."""
    query, key = _widths(config)
    keys = length / 2 if causal else float(length)
    projections = config.hidden_size * (2 * query + 2 * key)
    feed_forward = 3 * config.hidden_size * config.intermediate_size
    attention = 2 * query * keys  # scores and values
    layers = config.num_hidden_layers * (projections + feed_forward + attention)
    position = sum(positions.multiplications_per_token(config, i, keys) for i in range(config.num_hidden_layers))
    return length * (layers + position + config.hidden_size * config.vocab_size)


def forward_flops_per_token(config: TapeConfig, length: int) -> float:
    """FLOPs of one forward per token, averaged over a causal document of ``length`` tokens."""
    return 2.0 * multiply_adds(config, length) / length


def training_flops_per_token(config: TapeConfig, length: int, trained_share: float) -> float:
    """FLOPs of forward and backward, per token, without recomputation.

    The backward needs as much as the forward for the gradients of activations, and again as much for those of
    weights, of which only ``trained_share`` (0 to 1, by parameter count) is computed.
    """
    return forward_flops_per_token(config, length) * (2.0 + trained_share)


def _widths(config: TapeConfig) -> tuple[int, int]:
    """Columns of all queries, and of all keys."""
    return config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
