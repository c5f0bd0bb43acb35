"""A model's tensors by kind, counted from its configuration, and which of them get gradients."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig

from tape_ds import encodings as positions
from tape_ds.encodings import registry
from tape_ds.models import decoder_configuration, kept_states
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.files.config_file import TAPE
from tape_ds.models.flops import Weights, decoder_shape

Config = TapeConfig | PreTrainedConfig
Kind = Literal["linear", "head", "embedding", "norm", "position", "adapter"]


@dataclass(frozen=True)
class Tensors:
    """Parameters of one size, all trained or all frozen."""

    kind: Kind
    size: int
    """Numbers in one of them."""
    count: int
    """How many there are."""
    trained: bool
    split: bool
    """Whether tensor parallelism gives each rank a part; else every rank has it all."""

    @property
    def total(self) -> int:
        return self.size * self.count


@dataclass(frozen=True)
class TrainedShape:
    """Which kinds of parameter are trained."""

    linears: bool = False
    """The blocks' own matrices and the output head."""
    norms: bool = False
    embeddings: bool = False
    positions: bool = False
    """The encoding's own parameters."""
    adapters: tuple[tuple[str, int], ...] = ()
    """(name, rank) of each linear layer with a LoRA adapter; other trained parameters are copied whole."""

    @classmethod
    def everything(cls) -> TrainedShape:
        return cls(linears=True, norms=True, embeddings=True, positions=True)

    @property
    def anything(self) -> bool:
        return (
            self.linears or self.norms or self.embeddings or self.positions or bool(self.adapters)
        )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A model in plain numbers, so that thousands of layouts can be tried in a second."""

    hidden: int
    inner: int
    """Columns inside the feed-forward."""
    layers: int
    heads: int
    groups: int
    """Key/value heads."""
    head_size: int
    vocabulary: int
    tied: bool
    """Whether the output head is the embedding's own matrix."""
    state: int = 0
    """Numbers of position state per token between blocks."""
    placed: int
    """Blocks that have positions."""
    carried: int = 0
    """Columns for each head that ride along with the value through attention, in each of these but the last."""
    added: int = 0
    """Columns that the encoding adds to every query and key."""
    keeps_unrotated: float = 1.0
    """Share of these blocks of which a backward reads queries and keys as they were before the encoding turned them."""
    rank: int = 0
    """Inner width of the position feed-forward."""
    biased: bool = False
    """Whether attention on a CPU keeps the encoding's bias of its scores."""
    normed_heads: bool = False
    """Whether each head of queries and keys has a norm."""
    summed_bias: bool = False
    """Whether a bias follows a sum that tensor parallelism would take over ranks."""
    position_weights: tuple[tuple[int, int], ...] = ()
    """(numbers in one, how many) of the encoding's own parameters."""
    position_work: tuple[float, float] = (0.0, 0.0)
    """Multiplications that the encoding adds to the blocks per token, all together: whatever is seen, and for every
    key that is."""
    counted: tuple[Weights, ...] = ()
    """Parameters of a decoder of transformers, as they are; activations are then those of a dense decoder of these
    sizes. Empty: a model of this project, whose parameters follow from the sizes."""
    attending: float = 1.0
    """Share of the blocks that have attention."""
    recurrent: tuple[float, float] = (0.0, 0.0)
    """Bytes per token that a block's recurrence keeps, in the mean of all blocks: in 16 bits, and in fp32."""

    @property
    def query(self) -> int:
        return self.heads * self.head_size

    @property
    def key(self) -> int:
        return self.groups * self.head_size

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(columns, rows) of the linear layers of one block, by name."""
        if self.counted:
            return {each.name: each.shape for each in self.counted if each.kind == "linear"}
        hidden = self.hidden
        inner = self.inner
        query = self.query
        key = self.key
        attention = {"q_proj": (hidden, query), "k_proj": (hidden, key), "v_proj": (hidden, key)}
        gates = {"gate_proj": (hidden, inner), "up_proj": (hidden, inner)}
        return {**attention, "o_proj": (query, hidden), **gates, "down_proj": (inner, hidden)}


def sizes(config: Any) -> Sizes:
    shared: dict[str, Any] = {
        "hidden": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "groups": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "vocabulary": config.vocab_size,
        "tied": bool(config.tie_word_embeddings),
    }
    if config.model_type != TAPE:  # counted on a model without storage
        shape = decoder_shape(config)
        own: dict[str, Any] = {
            "inner": shape.inner,
            "head_size": shape.head_size,
            "counted": shape.weights,
        }
        if decoder_configuration.carries_state(config):
            layers = config.num_hidden_layers
            kept = [
                kept_states.bytes_per_token(config, dtype) / layers
                for dtype in (torch.bfloat16, torch.float32)
            ]
            own |= {"attending": len(shape.windows) / layers, "recurrent": tuple(kept)}
        return Sizes(**shared, **own, placed=config.num_hidden_layers)

    # one block of each kind, without storage, times its number
    times = positions.options(config).alike(config.num_hidden_layers)
    placed = sum(times.values())
    with torch.device("meta"):
        encoding = registry.build(config)
        layers = {index: registry.build_layer(config, index) for index in times}
    counted = Counter(weight.numel() for weight in encoding.parameters())
    for index, layer in layers.items():
        for weight in layer.parameters():
            counted[weight.numel()] += times[index]
    fixed = sum(
        times[index] * layer.multiplications_per_token(0.0) for index, layer in layers.items()
    )
    seen = sum(
        times[index] * layer.multiplications_per_token(1.0) for index, layer in layers.items()
    )
    first = layers[min(times)]
    per_key = first.multiplications_per_token(1.0) - first.multiplications_per_token(0.0)
    state = first.state_columns
    return Sizes(
        **shared,
        inner=config.intermediate_size,
        head_size=config.head_dim,
        state=state,
        placed=placed,
        carried=round(per_key / config.num_attention_heads) if state else 0,
        added=first.added_columns,
        keeps_unrotated=sum(times[index] * layer.keeps_unrotated for index, layer in layers.items())
        / placed,
        rank=getattr(first, "rank", 0),
        biased=first.keeps_bias,
        normed_heads=getattr(config, "qk_norm", False),
        summed_bias=any(getattr(config, name, False) for name in ("attention_bias", "mlp_bias")),
        position_weights=tuple(sorted(counted.items())),
        position_work=(fixed, seen - fixed),
    )


CUT_BY_ROWS = ("o_proj", "down_proj")
"""Linear layers whose input tensor parallelism splits; it splits the output of the others. Only the LoRA factor on the
split side is split."""


@functools.cache
def tensors(model: Sizes, trained: TrainedShape, ways: int = 1) -> tuple[Tensors, ...]:
    """Return all parameters of the model, with adapters and the copies that peft trains: those of each of the ``ways``
    ranks of a tensor-parallel group."""
    on = {
        "linear": trained.linears,
        "head": trained.linears,
        "norm": trained.norms,
        "embedding": trained.embeddings,
    }
    on["position"] = trained.positions
    found: list[Tensors] = []

    def add(kind: Kind, size: int, count: int, split: bool = False) -> None:
        # peft trains a copy and keeps the frozen original
        if trained.adapters and on[kind]:
            found.append(Tensors(kind, size, count, False, split))
        found.append(Tensors(kind, size, count, on[kind], split))

    if model.counted:
        for each in model.counted:
            add(each.kind, each.numbers, each.times)
    else:
        for columns, rows in model.linears.values():
            add("linear", columns * rows, model.layers, split=True)
        add("norm", model.hidden, 2 * model.layers + 1)
        add("norm", model.head_size, 2 * model.layers * model.normed_heads)
        add("embedding", model.vocabulary * model.hidden, 1, split=True)
        for size, count in model.position_weights:
            add("position", size, count)
        if not model.tied:
            add("head", model.vocabulary * model.hidden, 1, split=True)

    ranks = dict(trained.adapters)
    for weights in model.counted:
        if weights.kind == "linear" and weights.name in ranks:
            found.append(
                Tensors(
                    "adapter", ranks[weights.name] * sum(weights.shape), weights.times, True, False
                )
            )
    for name, rank in trained.adapters if not model.counted else ():
        by_rows = name in CUT_BY_ROWS
        (columns, rows) = model.linears[name]
        found.append(Tensors("adapter", rank * columns, model.layers, True, split=by_rows))
        found.append(Tensors("adapter", rank * rows, model.layers, True, split=not by_rows))
    return tuple(
        replace(each, size=-(-each.size // ways)) if each.split else each for each in found
    )


def total(found: Iterable[Tensors], *, trained: bool | None = None) -> int:
    return sum(each.total for each in found if trained is None or each.trained == trained)
