"""Sizes, multiplications and floating-point operations of a model, from its configuration alone.

A multiply-add (MAC) is one multiplication with its addition, and 2 floating-point operations (FLOPs). Norms, rotations,
activations, the softmax, short convolutions and the updates of recurrent states are not counted. Two conventions for
attention:

- causal: a token sees half of the others on average; a fused kernel computes this, and speeds and model FLOPs
  utilisation are measured with it here;
- full: the whole T x S matrix, as profilers count a forward with a mask, and as the TAPE paper's Table 3 counts.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from transformers import PreTrainedConfig

from tape_ds.encodings import registry
from tape_ds.kernels import flop_formulas  # noqa: F401  (torch's counters then know the operators)
from tape_ds.models import decoder, recurrent
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.decoder_configuration import WITHOUT_ATTENTION

Config: TypeAlias = TapeConfig | PreTrainedConfig

_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
"""Names in configurations for the experts per token."""
_EXPERTS = re.compile("Experts$")
"""End of the names of classes that hold the matrices of all experts of a layer."""
_ATTENTION = re.compile("(Attention|MLA)$")
"""Ends of the names of classes of attention."""


class Weights(NamedTuple):
    kind: Literal["linear", "head", "embedding", "norm"]
    """``norm``: all that is none of the others, such as biases."""
    name: str
    shape: tuple[int, int]
    """Columns and rows of a matrix; (1, numbers) of anything else."""
    times: int

    @property
    def numbers(self) -> int:
        return self.shape[0] * self.shape[1]


class DecoderShape(NamedTuple):
    """Sizes of a decoder of transformers, and the work of a token."""

    weights: tuple[Weights, ...]
    active: float
    """Multiplications of a token with the matrices of blocks and the head, only the chosen experts counted."""
    inner: int
    """Columns inside the feed-forward that a token goes through."""
    head_size: int
    """Columns of a head of queries."""
    windows: tuple[int | None, ...]
    """Tokens that each layer with attention sees; None: all."""
    linear_maps: Mapping[str, bool]
    """Names of the linear maps of blocks, routers left out -> whether attention has them."""
    has_router: bool


_SHAPES: dict[str, DecoderShape] = {}


def decoder_shape(config: PreTrainedConfig) -> DecoderShape:
    """Return the sizes of a configuration that :func:`tape_ds.models.decoder_configuration.check` accepts, counted on a
    model without storage."""
    key = decoder.key_of(config)
    if key in _SHAPES:  # plan, memory and FLOPs ask again and again
        return _SHAPES[key]
    model = decoder.on_meta(config)
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    routers = tuple(decoder.routers(model))
    experts_per_token = next(
        (getattr(config, name) for name in _ACTIVE if getattr(config, name, None)), 1
    )
    counted: Counter[tuple[Any, str, tuple[int, int]]] = Counter()
    linear_maps: dict[str, bool] = {}
    named_maps = recurrent.linear_maps(model)
    active = float(head.weight.numel())
    has_experts = False
    for path, module in model.named_modules():
        above, _, name = path.rpartition(".")
        name = named_maps.get(path, name)
        if path in named_maps and module is not head and not (routers and path.startswith(routers)):
            in_attention = bool(_ATTENTION.search(type(model.get_submodule(above)).__name__))
            in_attention &= not name.startswith(recurrent.PREFIX)
            linear_maps[name] = linear_maps.get(name, False) or in_attention
        for kind, parameter in module.named_parameters(recurse=False):
            # tied: counted there
            if module is head and parameter is embedding.weight:
                continue
            if parameter.ndim == 3 and _EXPERTS.search(type(module).__name__):
                experts, rows, columns = parameter.shape
                counted["linear", f"{name}.{kind}", (columns, experts * rows)] += 1
                active += min(experts_per_token, experts) * rows * columns
                has_experts = True
            elif parameter.ndim == 2 and module not in (head, embedding):
                rows, columns = parameter.shape
                counted["linear", name, (columns, rows)] += 1
                active += rows * columns
            else:
                named = "norm"
                if module is embedding:
                    named = "embedding"
                elif module is head:
                    named = "head"
                counted[named, kind, (1, parameter.numel())] += 1

    inner = getattr(config, "moe_intermediate_size", None) or getattr(
        config, "intermediate_size", config.hidden_size
    )
    inner = (max(inner) if isinstance(inner, list) else inner) * (
        experts_per_token if has_experts else 1
    )
    # the attribute may be refused: Gemma 4's differs between layers
    fields = config.to_dict()
    head_size = (
        fields.get("qk_head_dim")
        or fields.get("head_dim")
        or config.hidden_size // config.num_attention_heads
    )
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    layers = layers or ["sliding_attention"] * config.num_hidden_layers
    layers = [layer for layer in layers if layer not in WITHOUT_ATTENTION]
    _SHAPES[key] = DecoderShape(
        weights=tuple(Weights(*key, count) for key, count in counted.items()),
        active=active,
        inner=inner,
        head_size=head_size,
        windows=tuple(
            window if layer == "sliding_attention" and window else None for layer in layers
        ),
        linear_maps=linear_maps,
        has_router=bool(routers),
    )
    return _SHAPES[key]


def multiply_adds(
    config: Config, length: int, causal: bool = True, *, attention_span: float | None = None
) -> float:
    """MACs of one forward over one sequence of ``length`` tokens, output head included.

    ``attention_span``: length of the sequences that attention works on, if it is less than the whole sequence, see
    :func:`tape_ds.attention.shifted_groups.attention_span`.
    """
    if not isinstance(config, TapeConfig):
        shape = decoder_shape(config)
        columns = config.num_attention_heads * shape.head_size
        seen = sum(
            min(length / 2 if causal else length, window or length) for window in shape.windows
        )
        return length * (shape.active + 2 * columns * seen)
    query = config.num_attention_heads * config.head_dim
    key = config.num_key_value_heads * config.head_dim
    span = float(length) if attention_span is None else attention_span
    keys = span / 2 if causal else span
    projections = config.hidden_size * (2 * query + 2 * key)
    feed_forward = 3 * config.hidden_size * config.intermediate_size
    attention = 2 * query * keys  # scores and values
    layers = config.num_hidden_layers * (projections + feed_forward + attention)
    with torch.device("meta"):
        positions = [
            registry.build_layer(config, index) for index in range(config.num_hidden_layers)
        ]
    position = sum(layer.multiplications_per_token(keys) for layer in positions)
    return length * (layers + position + config.hidden_size * config.vocab_size)


def training_flops_per_token(
    config: Config, length: int, trained_share: float, *, attention_span: float | None = None
) -> float:
    """FLOPs of forward and backward per token, without recomputation, averaged over a causal document of ``length``.

    The backward needs as much as the forward for the gradients of activations, and again as much for those of weights,
    of which only ``trained_share`` (0 to 1, by parameter count) is computed.
    """
    forward = 2.0 * multiply_adds(config, length, attention_span=attention_span) / length
    return forward * (2.0 + trained_share)
