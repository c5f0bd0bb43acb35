"""Inspect one forward pass layer by layer: attention weights, and positions as each layer computes with them.

Hooks on the blocks show both, so the model needs no code for it. A layer is passed to the caller once computed, then
dropped: at most one layer's weights exist in addition to those that the caller keeps.

*Positions* are one number for a pair of tokens n and m, from the layer's own encoding: the dot product ``e_n . e_m`` of
their states if queries and keys are rotated, the bias on their score if one is added.

Shape letters: T tokens, S keys (T too: nothing is cached), H query heads, G key/value heads, K head size, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from tape_ds.attention import ENVIRONMENT, requested
from tape_ds.attention.score_bias import ScoreBias
from tape_ds.encodings.base import PositionLayer
from tape_ds.errors import Problem, raise_if_any
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.files import config_file
from tape_ds.models.llama import BlockInputs, TapeForCausalLM
from tape_ds.models.loading import extendable
from tape_ds.scoring.losses import evaluating

WITH_WEIGHTS = "reference"
"""The attention backend that computes weights."""
QUERIES_AT_ONCE = 128
"""Queries whose bias is computed at once: intermediate results can be far larger than the bias."""


class PositionMap(NamedTuple):
    """A number of one layer's encoding for each pair of tokens."""

    kind: str
    """``dot product`` or ``score bias``."""
    matrix: Callable[[], Tensor]
    """Returns [heads, T, S], fp32 at least; G or H heads, or 1 if all are the same. Only keys up to the query count."""


@dataclass(frozen=True)
class LayerView:
    """One layer of one forward pass."""

    number: int
    """1 is the first layer."""
    weights_HTS: Tensor
    """Attention weights, fp32 at least; 0 after the query's own position."""
    positions: PositionMap | None
    """As this layer reads them, before its own update; None: positions enter with the embeddings, in additional columns
    of queries and keys, follow from both, or do not enter in this layer."""
    start: Tensor | None = None
    """Initial state, [1, G or 1, T, C], if the layer reads one."""
    deviation: Tensor | None = None
    """From it, as this layer reads it, [1, G, T, C]; None until a layer has updated it."""


Visit = Callable[[LayerView], None]


def check(config: PreTrainedConfig) -> list[Problem]:
    """Return why a model of this configuration cannot be inspected."""
    problems = []
    asked = requested(WITH_WEIGHTS)
    if asked != WITH_WEIGHTS:
        reason = f"attention weights are computed by the {WITH_WEIGHTS} backend alone"
        problems.append(Problem(ENVIRONMENT, asked, reason, "unset this environment variable"))
    if extendable.by_own_class(config):
        problems += config_file.check_llama_shaped(config)
    return problems


@torch.no_grad()
def inspect(
    model: extendable.Model,
    ids_T: Tensor,
    layers: Sequence[int],
    visit: Visit,
    positions_T: Tensor | None = None,
) -> Tensor:
    """Run one forward pass over one text; ``visit`` is called with each of ``layers`` as it is computed.

    Args:
        model: in evaluation mode.
        ids_T: int64 [T], on any device.
        layers: numbers of layers, from 1.
        visit: keeps what it needs of a view.
        positions_T: position ids [T]; default: from 0.

    Returns:
        Logits [T, V].
    """
    modules = model.base_model.modules()
    # transformers' class of every layer that can be checkpointed
    decoder = [block for block in modules if isinstance(block, GradientCheckpointingLayer)]
    if model.training or not set(layers) <= set(range(1, len(decoder) + 1)):
        raise ValueError(
            f"layers {list(layers)} of {len(decoder)}: inspect a model in evaluation mode, from layer 1"
        )
    raise_if_any(check(model.config))
    config: Any = model.config
    kept = config.attention_backend
    config.attention_backend = WITH_WEIGHTS
    try:
        with ExitStack() as hooks:
            for number in sorted(set(layers)):
                for handle in _watch(decoder[number - 1], number, config, visit):
                    hooks.callback(handle.remove)
            ids_BT = ids_T.to(model.device)[None]
            positions_BT = None
            if positions_T is not None:
                positions_BT = positions_T.to(model.device)[None]
            logits: Tensor = model(ids_BT, position_ids=positions_BT, use_cache=False).logits[0]
    finally:
        config.attention_backend = kept
    return logits


def _watch(block: Any, number: int, config: Any, visit: Visit) -> list[RemovableHandle]:
    """Call ``visit`` at the end of the layer's attention."""
    read: list[tuple[PositionMap | None, Tensor | None, Tensor | None]] = []

    def before(_: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        hidden_BTD, state = arguments
        positions = _positions(block.position, hidden_BTD, state, named["inputs"], config)
        read[:] = [(None, None, None)]
        if positions is not None:
            read[:] = [(positions, named["inputs"].start, state)]

    def after(_: nn.Module, __: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        visit(LayerView(number, output[1][0], *read.pop()))

    return [
        block.register_forward_pre_hook(before, with_kwargs=True),
        block.self_attn.register_forward_hook(after),
    ]


def _positions(
    layer: PositionLayer,
    hidden_BTD: Tensor,
    state: Tensor | None,
    inputs: BlockInputs,
    config: TapeConfig,
) -> PositionMap | None:
    """Ask the layer itself what it computes from this start and state: nothing else here depends on an encoding."""
    start = inputs.start
    groups = config.num_key_value_heads
    width = config.head_dim
    places: Any = None
    if inputs.query_positions is not None:
        places = (inputs.query_positions, inputs.key_positions)
    carried: Any = layer.carry(
        start, state, hidden_BTD.new_zeros(1, groups, hidden_BTD.shape[1], width)
    )
    if carried is not None:
        carried = (carried, carried)
    bias = layer.score_bias(places, carried)
    if isinstance(bias, ScoreBias):
        return PositionMap("score bias", partial(_whole_bias, bias))

    # a rotation that depends on content has no state to show
    if start is None or _overrides(layer, "observe") or not _overrides(layer, "rotate"):
        return None
    heads = groups if state is not None else start.shape[1]

    # A vector of ones in the first half of a head is rotated to [cos | sin], one in the second half to [-sin | cos];
    # together they show every column of a state, even if its halves differ.
    dtype = torch.promote_types(hidden_BTD.dtype, torch.float32)
    halves_21GTK = hidden_BTD.new_zeros(2, 1, heads, hidden_BTD.shape[1], width, dtype=dtype)
    halves_21GTK[0, ..., : width // 2] = 1
    halves_21GTK[1, ..., width // 2 :] = 1
    left, right = (layer.rotate(half, half, start, state) for half in halves_21GTK)
    queries_GTC = torch.cat((left[0], right[0]), dim=-1)[0]
    keys_GTC = torch.cat((left[1], right[1]), dim=-1)[0]
    # 1 for a token with itself under plain RoPE; queries and keys may be rotated differently
    return PositionMap("dot product", lambda: queries_GTC @ keys_GTC.mT / width)


class UpdateStatistics(NamedTuple):
    """A number for each layer, of the state as the layer reads it."""

    deviation: list[float]
    """|d| / |e|, as norms over all tokens, heads and columns; e = start + d."""
    along_own: list[float | None]
    """Share of |d|^2 along the token's own pairs (cos_j, sin_j) of e: it changes their length, which rescales scores;
    the rest rotates them. None without an update."""
    first_token: list[float]
    """Weight of the first token in ``A e``, mean over heads and all queries but the first."""


def measure_updates(
    model: TapeForCausalLM, ids_T: Tensor, positions_T: Tensor | None = None
) -> UpdateStatistics:
    """Measure one text of two tokens or more, int64 [T], in evaluation mode; positions count from 0 by default."""
    statistics = UpdateStatistics([], [], [])

    def visit(view: LayerView) -> None:
        statistics.first_token.append(view.weights_HTS[:, 1:, 0].mean().item())
        if view.start is None or view.deviation is None:
            statistics.deviation.append(0.0)
            statistics.along_own.append(None)
            return
        d = view.deviation.float()
        e = view.start.float() + d
        statistics.deviation.append((d.norm() / e.norm()).item())
        # the halves of a state are cosines and sines: column j of both is a pair
        d_pairs = d.unflatten(-1, (2, -1))
        e_pairs = e.unflatten(-1, (2, -1))
        along = (d_pairs * e_pairs).sum(-2) / e_pairs.norm(dim=-2).clamp_min(1e-12)
        squares = d.square().sum()
        share = None
        if squares:
            share = (along.square().sum() / squares).item()
        statistics.along_own.append(share)

    with evaluating(model):
        inspect(model, ids_T, range(1, model.config.num_hidden_layers + 1), visit, positions_T)
    return statistics


def _whole_bias(bias: ScoreBias) -> Tensor:
    """Return the bias of every query and key, some queries at a time."""
    parts = []
    for first in range(0, bias.query_marks.shape[2], QUERIES_AT_ONCE):
        parts.append(bias.of(slice(first, first + QUERIES_AT_ONCE), slice(None)))
    return torch.cat(parts, dim=2)[0]


def _overrides(layer: PositionLayer, name: str) -> bool:
    """Return whether the layer's class has a method of its own; of the class, since peft may wrap the layer."""
    return getattr(getattr(layer, name), "__func__", None) is not getattr(PositionLayer, name)
