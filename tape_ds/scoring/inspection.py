"""What a forward computed, layer by layer: the attention weights, and where each layer held the tokens to stand.

Both are seen through hooks on the blocks, so that the model has no code for it. A layer is handed to the caller as soon
as it is computed and forgotten behind it: at most one layer's weights are held beside those that the caller keeps.

*Where tokens stand* is one number for a pair of tokens n and m, as the layer's own encoding says it: the dot product
``e_n . e_m`` of their states where queries and keys are turned, the bias on their score where one is added.

Shape letters: T tokens, S keys (T too: nothing is cached), H query heads, G key/value heads, K head size, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tape_ds import encodings as positions
from tape_ds.attention.names import ENVIRONMENT, requested
from tape_ds.attention.score_bias import ScoreBias
from tape_ds.encodings.base import PositionLayer
from tape_ds.errors import Problem, raise_if_any
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.llama import BlockInputs, TapeForCausalLM
from tape_ds.models.loading import extendable, families
from tape_ds.models.loading.strict import fill

WITH_WEIGHTS = "reference"
"""The attention backend that computes them."""
QUERIES_AT_ONCE = 128
"""A bias is computed for so many queries at a time: what it holds on the way can be far larger than itself."""


class PositionMap(NamedTuple):
    """What one layer's encoding says of each pair of tokens."""

    kind: str
    """``dot product`` or ``score bias``."""
    matrix: Callable[[], Tensor]
    """Gives [heads, T, S], fp32 at least: one head where all are the same, else G or H. Only keys up to the query's own
    place mean something."""


def _dot_products(queries_GTC: Tensor, keys_GTC: Tensor) -> PositionMap:
    """``e_n . e_m`` of the states by which queries and keys are turned, cosines and sines of C / 2 pairs, divided by
    their number: 1 for a token with itself under plain RoPE, whose states have the length of their number of pairs. The
    two states differ where keys are turned in another way than queries."""
    return PositionMap("dot product", lambda: queries_GTC @ keys_GTC.mT / (keys_GTC.shape[-1] / 2))


def _biases(bias: ScoreBias) -> PositionMap:
    """What the layer adds to the scores."""

    def matrix() -> Tensor:
        starts = range(0, bias.query_marks.shape[2], QUERIES_AT_ONCE)
        blocks = [bias.of(slice(start, start + QUERIES_AT_ONCE), slice(None)) for start in starts]
        return torch.cat(blocks, dim=2)[0]

    return PositionMap("score bias", matrix)


@dataclass(frozen=True)
class LayerView:
    """One layer of one forward."""

    number: int
    """1 is the first layer."""
    weights_HTS: Tensor
    """Attention weights, fp32 at least; 0 behind the query's own place."""
    positions: PositionMap | None
    """As this layer read them, before its own update; None: positions enter with the
    embeddings, in more columns of queries and keys, follow from both, or enter not at all in this layer."""
    start: Tensor | None = None
    """What the state started from, [1, G or 1, T, C], where this layer reads one."""
    deviation: Tensor | None = None
    """From it, as this layer read it, [1, G, T, C]; None until a layer has updated it."""


Visit = Callable[[LayerView], None]


def check(config: PreTrainedConfig) -> list[Problem]:
    """Why a model of this configuration cannot be inspected: it is of a family that this project does not compute, or
    the environment asks for attention without weights."""
    asked = requested(WITH_WEIGHTS)
    problems = []
    if asked != WITH_WEIGHTS:
        wrong = f"attention weights are computed by the {WITH_WEIGHTS} backend alone"
        problems.append(Problem(ENVIRONMENT, asked, wrong, "unset this environment variable"))
    return problems + _not_ours(config)


def _not_ours(config: PreTrainedConfig) -> list[Problem]:
    return families.check_llama_shaped(config) if extendable.by_own_class(config) else []


def as_own(model: PreTrainedModel) -> extendable.Model:
    """Return the same weights in this project's model, whose blocks can be inspected; the model itself where it is one.

    Raises:
        UserError: it is of another family.
    """
    if isinstance(model, TapeForCausalLM):
        return model
    raise_if_any(_not_ours(model.config))
    config = extendable.configure(model.config)
    with torch.device("meta"):
        empty = TapeForCausalLM(positions.plain(config, config.rope_parameters))
    filled: extendable.Model = fill(empty, model.state_dict(), model.config.model_type)
    return filled


@torch.no_grad()
def inspect(
    model: extendable.Model, ids_T: Tensor, layers: Sequence[int], visit: Visit, positions_T: Tensor | None = None
) -> Tensor:
    """Return one forward over one text; ``visit`` is called with each of ``layers`` (1 is the first) as it is computed.

    Args:
        model: in evaluation mode.
        ids_T: int64 [T], on any device.
        layers: numbers of layers.
        visit: keeps of a view what it needs.
        positions_T: position ids [T]; default: from 0.

    Returns:
        Logits [T, V].

    Raises:
        UserError: the environment asks for another attention than the one with weights.
        ValueError: a model in training mode, no such layer.
    """
    decoder = blocks(model)
    if model.training or not all(1 <= number <= len(decoder) for number in layers):
        raise ValueError(f"layers {list(layers)} of {len(decoder)}: inspect a model in evaluation mode, from layer 1")
    with _with_weights(model), ExitStack() as hooks:
        for number in sorted(set(layers)):
            hooks.enter_context(_watched(decoder[number - 1], number, model.config, visit))
        ids_BT = ids_T.to(model.device)[None]
        positions_BT = None if positions_T is None else positions_T.to(model.device)[None]
        logits: Tensor = model(ids_BT, position_ids=positions_BT, use_cache=False).logits[0]
    return logits


def blocks(model: extendable.Model) -> list[nn.Module]:
    """Return the decoder's blocks, first to last."""
    return [module for module in model.base_model.modules() if isinstance(module, GradientCheckpointingLayer)]


@contextmanager
def _with_weights(model: extendable.Model) -> Iterator[None]:
    """Within the block, attention goes through the one backend that computes its weights."""
    raise_if_any(check(model.config))
    config: Any = model.config
    kept, config.attention_backend = config.attention_backend, WITH_WEIGHTS
    try:
        yield
    finally:
        config.attention_backend = kept


@contextmanager
def _watched(block: Any, number: int, config: Any, visit: Visit) -> Iterator[None]:
    """Within the block, ``visit`` sees a layer at the end of each of its attentions."""
    read: list[tuple[PositionMap | None, Tensor | None, Tensor | None]] = []

    def before(_: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        hidden_BTD, state = arguments
        found = _positions(block.position, hidden_BTD, state, named["inputs"], config)
        read[:] = [(None, None, None) if found is None else (found, named["inputs"].start, state)]

    def after(_: nn.Module, __: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        visit(LayerView(number, output[1][0], *read.pop()))

    handles = [block.register_forward_pre_hook(before, with_kwargs=True), block.self_attn.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _positions(
    layer: PositionLayer, hidden_BTD: Tensor, state: Tensor | None, inputs: BlockInputs, config: TapeConfig
) -> PositionMap | None:
    """Return what a layer that reads this start and this state does with positions: asked of the layer itself, which is
    all that is known of an encoding here."""
    start, places = inputs.start, (inputs.query_positions, inputs.key_positions)
    groups = config.num_key_value_heads
    like_BGTK = hidden_BTD.new_zeros(1, groups, hidden_BTD.shape[1], config.head_dim)
    carried = layer.carry(start, state, like_BGTK)
    bias = layer.score_bias(places[0], carried, places[1], carried)
    if isinstance(bias, ScoreBias):
        return _biases(bias)
    # of the layer itself, around which peft may stand; a rotation by what is seen of content has no state to show
    turns, reads = (
        getattr(getattr(layer, name), "__func__", None) is not getattr(PositionLayer, name)
        for name in ("rotate", "observe")
    )
    if start is None or reads or not turns:
        return None
    heads = groups if state is not None else start.shape[1]
    return _turned(lambda probe: layer.rotate(probe, probe, start, state), hidden_BTD, heads, config.head_dim)


def _turned(turn: Callable[[Tensor], tuple[Tensor, Tensor]], hidden_BTD: Tensor, heads: int, width: int) -> PositionMap:
    """States as a rotation shows them. A vector of ones in the first half of a head comes out as [cos | sin], one in
    the second as [-sin | cos], so that together they show every column of a state, of those too whose halves differ."""
    dtype = torch.promote_types(hidden_BTD.dtype, torch.float32)
    halves_21GTK = hidden_BTD.new_zeros(2, 1, heads, hidden_BTD.shape[1], width, dtype=dtype)
    halves_21GTK[0, ..., : width // 2] = 1
    halves_21GTK[1, ..., width // 2 :] = 1
    turned = [turn(half) for half in halves_21GTK]
    queries_GTC, keys_GTC = (torch.cat(both, dim=-1)[0] for both in zip(*turned, strict=True))
    return _dot_products(queries_GTC, keys_GTC)
