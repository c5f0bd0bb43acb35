"""What a positional encoding is: two small classes of hooks, of which it overrides the ones it needs.

Shape letters: B batch, T tokens, H query heads, G key/value heads, K head size, D hidden size, C carried columns.

A model forward calls ``PositionEncoding.start`` once; what it returns (``start``) reaches every layer unchanged.
Beside it travels ``state``, a tensor that layers may update (None until one does): two flat tensors, so that
activation checkpointing sees and differentiates both.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from tape_ds.errors import Problem


@dataclass(frozen=True)
class Options:
    """Settings of one encoding, as the user writes them under ``position_options``; subclasses add the fields."""

    def problems(self) -> list[Problem]:
        """What contradicts itself among the fields (types and names are checked before)."""
        return []


class PositionEncoding(nn.Module):
    """The part of an encoding that runs once per model forward; holds no state between forwards."""

    translation_invariant = True
    """A promise: adding a constant to all positions leaves the logits unchanged."""

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        """The token embeddings as the first block sees them."""
        return x_BTD

    def start(self, positions_BT: Tensor) -> Tensor | None:
        """What all layers share, from the positions alone (any offsets and jumps; B may be 1)."""
        return None


class PositionLayer(nn.Module):
    """The part of an encoding that runs in every block."""

    def rotate(
        self, q_BHTK: Tensor, k_BGTK: Tensor, start: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys as attention sees (and a cache keeps) them."""
        return q_BHTK, k_BGTK

    def carry(self, start: Tensor | None, state: Tensor | None, like: Tensor) -> Tensor | None:
        """Columns [B, G, T, C] that ride along with the value through attention, in the dtype of ``like``."""
        return None

    def after_attention(self, state: Tensor | None, carried_BHTC: Tensor | None) -> Tensor | None:
        """The state after attention, given what attention made of :meth:`carry`'s columns."""
        return state

    def after_mlp(self, start: Tensor | None, state: Tensor | None, y_BTD: Tensor) -> Tensor | None:
        """The state after the feed-forward, given the MLP's output before it joins the residual stream."""
        return state

    def state_columns(self) -> int:
        """Numbers of state per token that this layer reads and hands on."""
        return 0

    def multiplications_per_token(self, length: int) -> float:
        """Multiplications this layer adds to a plain block, per token, in a causal document of ``length`` tokens."""
        return 0.0
