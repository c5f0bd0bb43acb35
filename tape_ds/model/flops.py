"""Floating-point operations of a model, from its configuration alone.

A multiplication with its addition counts as 2. Scores are counted causally (half of the full matrix); norms, rotations
and activations, which no matrix unit sees, are not counted.
"""

from tape_ds.model import positions
from tape_ds.model.configuration import TapeConfig


def forward_flops_per_token(config: TapeConfig, length: int) -> float:
    """FLOPs of one forward, per token, averaged over a document of ``length`` tokens; output head included."""
    query_width = config.num_attention_heads * config.head_dim
    key_width = config.num_key_value_heads * config.head_dim
    projections = config.hidden_size * (2 * query_width + 2 * key_width)
    feed_forward = 3 * config.hidden_size * config.intermediate_size
    attention = query_width * length  # scores and values, each over length / 2 keys on average
    layers = config.num_hidden_layers * (projections + feed_forward + attention)
    position = sum(positions.multiplications_per_token(config, i, length) for i in range(config.num_hidden_layers))
    return 2.0 * (layers + position + config.hidden_size * config.vocab_size)


def training_flops_per_token(config: TapeConfig, length: int, trained_share: float) -> float:
    """FLOPs of forward and backward, per token, without recomputation.

    The backward needs as much as the forward for the gradients of activations, and again as much for those of
    weights, of which only ``trained_share`` (0 to 1, by parameter count) is computed.
    """
    return forward_flops_per_token(config, length) * (2.0 + trained_share)
