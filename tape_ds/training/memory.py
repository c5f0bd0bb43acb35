"""Estimate of a training process's memory, by arithmetic, before anything is allocated.

Model states follow ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, Section 3): 16-bit weights for every parameter, and
for each trained one a gradient in the same precision and 12 bytes of fp32 master, momentum and variance. Activations
are what is kept for the backward; what an operator needs for a moment is not counted.
"""

from dataclasses import dataclass

from tape_ds.kernels.linear_cross_entropy import chunk_tokens
from tape_ds.model import positions
from tape_ds.model.extendable import Config

OPTIMIZER_BYTES = 12


@dataclass(frozen=True)
class Estimate:
    """Bytes per process."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


def estimate(
    config: Config,
    *,
    parameters: int,
    trained: int,
    tokens: int,
    ranks: int,
    stage: int,
    element_bytes: int,
    checkpointing: bool,
) -> Estimate:
    """Memory of one process.

    Args:
        config: the model.
        parameters: of the whole model.
        trained: of those, how many are trained.
        tokens: in one micro-batch (rows x length).
        ranks: processes that shard model states between them.
        stage: of ZeRO, 0 to 3.
        element_bytes: of weights, gradients and activations (2 or 4).
        checkpointing: whether only each block's input is kept.
    """
    share = [1 / ranks if stage >= needed else 1.0 for needed in (3, 2, 1)]
    return Estimate(
        weights=parameters * element_bytes * share[0],
        gradients=trained * element_bytes * share[1],
        optimizer=trained * OPTIMIZER_BYTES * share[2],
        activations=tokens * element_bytes * _activation_columns(config, checkpointing),
        # of one chunk of tokens: logits, their fp32 logarithms, and the gradient
        logits=min(tokens, chunk_tokens(config.vocab_size)) * config.vocab_size * (2 * element_bytes + 4),
    )


def _activation_columns(config: Config, checkpointing: bool) -> float:
    """Numbers kept per token: block inputs (hidden and position state), and the inside of one block or of all."""
    state = positions.state_columns(config)
    value = config.num_key_value_heads * config.head_dim
    query = config.num_attention_heads * config.head_dim
    block_input = config.hidden_size + state
    inside = 4 * config.hidden_size + 3 * query + 2 * value + 6 * state + 4 * config.intermediate_size
    blocks_inside = 1 if checkpointing else config.num_hidden_layers
    return config.num_hidden_layers * block_input + blocks_inside * inside
