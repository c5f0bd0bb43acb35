"""A positional encoding: two small classes of hooks, of which it overrides the ones it needs.

Shape letters: B batch, T tokens of this call, S keys (cached ones included), H query heads, G key/value heads, K head
size, D hidden size, C carried columns, N integers that place a token.

A forward calls the ``PositionEncoding`` once: for the positions of its tokens (``positions_for``), for a term of the
embeddings (``embed``), and for what all layers share (``start``). Each block has a ``PositionLayer``. Layers may also
update ``state``, a tensor that is None until one does; activation checkpointing differentiates it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tape_ds.attention.score_bias import ContentBias, ScoreBias
from tape_ds.encodings.options import ModelConfig, Options
from tape_ds.kernels.reference import upcast

EVERY_HEAD = slice(None)
Pair = tuple[Tensor, Tensor]
"""Of the queries of this call, and of all keys, cached ones included."""
PastKeys = Callable[[], Tensor | None]
Normal = Callable[[Tensor], Any]
"""Draw a tensor with the model's ``initializer_range``."""
Fill = Callable[[Tensor, float], Any]


def marks(positions: Pair) -> Pair:
    """Return positions as the marks of a :class:`ScoreBias` that is the same for all heads."""
    queries_BTN, keys_BSN = positions
    return queries_BTN[:, None, :, :1], keys_BSN[:, None, :, :1]


def groups_read(heads: slice, query_heads: int, groups: int) -> slice:
    """Return which of ``groups`` key/value heads these query heads read."""
    read = range(query_heads)[heads]
    heads_per_group = query_heads // groups
    return slice(read[0] // heads_per_group, read[-1] // heads_per_group + 1)


def dedupe_positions(position_ids: Tensor) -> Tensor:
    """Return positions [1, T, ...] where those of all sequences are equal, as in packed training: angles and biases are
    then computed once for the batch."""
    # Comparing waits for the device, which is not worth it for single tokens.
    if 1 in position_ids.shape[:2] or torch.compiler.is_compiling():
        return position_ids
    if bool((position_ids == position_ids[:1]).all()):
        return position_ids[:1]
    return position_ids


class TokenContext(NamedTuple):
    """Token ids, documents and cache of a forward."""

    ids_BT: Tensor | None
    """Token ids; None where the caller gave embeddings."""
    documents_BS: Tensor | None
    """Document of every key, -1 = padding; None: one document without padding."""
    offset: int | Tensor
    """Place of the first token of this call on the key axis."""
    past_BSN: Tensor | None
    """Result of ``positions_for`` for the tokens in the cache; at a tensor offset (a compiled static cache) the whole
    buffer, whose unused positions are 0. None without a cache, with an empty one, or if the encoding remembers none."""

    def whole(self, new_BTN: Tensor) -> Tensor:
        """Return the cached tokens' positions followed by those of this call, [B, S, N]."""
        if self.past_BSN is None:
            return new_BTN
        batch = max(self.past_BSN.shape[0], new_BTN.shape[0])
        past = self.past_BSN.expand(batch, -1, -1)
        new = new_BTN.expand(batch, -1, -1)
        # an int, or one that an exported graph leaves open
        if not isinstance(self.offset, Tensor):
            return torch.cat((past, new), dim=1)
        return past.index_copy(1, torch.arange(new.shape[1], device=new.device) + self.offset, new)

    def of_this_call(self, whole_BSN: Tensor, tokens: int) -> Tensor:
        if self.past_BSN is None:
            return whole_BSN
        if not isinstance(self.offset, Tensor):
            return whole_BSN[:, self.offset : self.offset + tokens]
        return whole_BSN.index_select(
            1, torch.arange(tokens, device=whole_BSN.device) + self.offset
        )


class PositionEncoding(nn.Module):
    """Part of an encoding that runs once per model forward; stateless between forwards."""

    translation_invariant = True
    """A promise: adding a constant to all positions leaves the logits unchanged."""
    cache_exact = True
    """A promise: decoding with a cache gives the logits of the full pass, at any length."""
    remembers = 0
    """N where a later call needs the positions of earlier tokens: a cache then keeps them. 0: it does not; N is 1."""

    def __init__(self, config: ModelConfig, options: Options):
        super().__init__()
        self.random_shift = options.random_shift
        self.draws = self.random_shift > 0
        """Whether a forward in training draws from torch's CPU generator."""
        self.reads_tokens = options.reads_tokens
        self.log_window: int | None = None
        """Keys up to which ``log_scale`` scales nothing; None: it is off."""
        if options.log_scale != "none":
            self.log_window = options.log_scale_from or config.max_position_embeddings
        self.log_positions = options.log_scale_by == "positions"

    def positions_for(self, positions_BT: Tensor, context: TokenContext) -> Tensor:
        """Return the positions of the tokens as this encoding counts: integers [B or 1, T, N], 0 or more.

        Args:
            positions_BT: int64 position ids, any offsets and jumps; B may be 1.
            context: what else is known of the tokens.
        """
        return self.shifted(positions_BT)[..., None]

    def shifted(self, positions_BT: Tensor) -> Tensor:
        if not self.training or not self.random_shift:
            return positions_BT
        return positions_BT + torch.randint(self.random_shift + 1, (), device="cpu").item()

    def for_layers(self, positions_BTN: Tensor) -> Tensor | None:
        """Return what of the positions :meth:`PositionLayer.score_bias` is given; None for an encoding that remembers
        none."""
        if self.remembers:
            return positions_BTN
        return None

    def embed(self, x_BTD: Tensor, positions_BTN: Tensor) -> Tensor:
        """Return the token embeddings as the first block sees them."""
        return x_BTD

    def start(self, positions_BTN: Tensor) -> Tensor | None:
        """Return what all layers share, computed from the positions."""
        return None


class PositionLayer(nn.Module):
    """Part of an encoding that runs in every block."""

    log_scaled = False
    """Whether ``log_scale`` is of this layer."""
    keeps_unrotated = False
    """Whether a backward through :meth:`rotate` reads queries and keys as they were."""
    biases_scores = False
    """Whether :meth:`score_bias` returns one."""
    keeps_bias = False
    """Whether attention without a fused kernel keeps a bias of this layer for the backward."""
    state_columns = 0
    """Numbers of state per token that this layer reads and passes on."""
    added_columns = 0
    """Columns that :meth:`rotate` adds to every query and key."""

    def __init__(self, *made_of: Any):
        super().__init__()

    def observe(self, x_BTD: Tensor, heads: slice = EVERY_HEAD) -> Tensor | None:
        """Return what :meth:`rotate` needs for the query heads ``heads``: of attention's input, a token at a time, or
        of parameters."""
        return None

    def rotate(
        self,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        start: Tensor | None,
        state: Tensor | None,
        observed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys as attention sees them, those of this process where sequences are shared; columns may
        be added to both, and never count in the scale. ``observed`` is what :meth:`observe` returned."""
        return q_BHTK, k_BGTK

    def scaled(self, q_BHTX: Tensor, factors_B1T1: Tensor) -> Tensor:
        """Return queries, as :meth:`rotate` returned them, whose products with keys are multiplied by these factors;
        what the encoding adds to the scores is not, unless it is made of the queries (``cope``)."""
        return (upcast(q_BHTX) * factors_B1T1).to(q_BHTX.dtype)

    def accumulate(
        self, k_BGTX: Tensor, past_keys: PastKeys, documents_BS: Tensor | None, offset: int | Tensor
    ) -> Tensor:
        """Return the keys as a cache keeps them: here a key may take in what is known of the keys before it.

        Args:
            k_BGTX: keys of whole sequences, as :meth:`rotate` returned them.
            past_keys: returns the cached keys [B, G, S, X]; at a tensor offset the whole buffer. None: no cache, an
                empty one, or one that does not keep its keys as they are. A function, as most encodings read none.
            documents_BS: document of every key, -1 = padding; None: one document without padding.
            offset: place of the first token of this call on the key axis.
        """
        return k_BGTX

    def carry(self, start: Tensor | None, state: Tensor | None, like: Tensor) -> Tensor | None:
        """Return columns [B, G, T, C] that attention moves with the value, in the dtype of ``like``."""
        return None

    def score_bias(
        self, positions: Pair | None, carried: Pair | None, heads: slice = EVERY_HEAD
    ) -> ScoreBias | ContentBias | None:
        """Return a bias on the scores.

        Args:
            positions: [B or 1, T, N] and [B or 1, S, N], as :meth:`PositionEncoding.for_layers` returns them.
            carried: columns of :meth:`carry`, [B, G, T, C] and [B, G, S, C].
            heads: of the model's query heads, those that this call computes; the columns are of their groups.
        """
        return None

    def next_state(
        self,
        start: Tensor | None,
        state: Tensor | None,
        attended_BHTC: Tensor | None,
        y_BTD: Tensor,
    ) -> Tensor | None:
        """Return the state as the next block reads it, from :meth:`carry`'s columns after attention and the MLP's
        output before it joins the residual stream."""
        return state

    def multiplications_per_token(self, keys: float) -> float:
        """Return multiplications per token that this layer adds to a plain block, where a token sees ``keys`` keys."""
        return 0.0


class Parameters(nn.Module, ABC):
    """A part of an encoding that owns parameters.

    Its parameters are read by calling it, never as attributes: where an engine shards parameters, only a module that
    is being called holds its own.
    """

    @abstractmethod
    def initialise(self, normal: Normal, constant: Fill) -> None:
        """Fill every parameter."""


class Weight(Parameters):
    """One learned tensor, zero or normal at the start."""

    def __init__(self, *shape: int, zero_init: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))
        self.zero_init = zero_init

    def initialise(self, normal: Normal, constant: Fill) -> None:
        constant(self.weight, 0.0) if self.zero_init else normal(self.weight)


class PlaceTable(Weight):
    """Learned embedding [rows, D] of a place in a segment (``bipe_*``) or in a number (Abacus)."""

    def forward(self, places: Tensor) -> Tensor:
        # later ones share the last
        return nn.functional.embedding(places.clamp(max=len(self.weight) - 1), self.weight)
