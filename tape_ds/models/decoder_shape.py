"""Sizes of a decoder of transformers, counted on a model without numbers, and the work of its forward."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from torch import nn
from transformers import PreTrainedConfig

from tape_ds.models import decoder

_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
"""Names that families have for the experts that a token goes to."""
_EXPERTS = re.compile("Experts$")
"""End of the names of classes that hold the matrices of all experts of a layer."""
_ROUTER = re.compile("(Router|Gating|MoEV1Gate)$")
"""Ends of the names of classes that send a token to its experts."""
_ATTENTION = re.compile("(Attention|MLA)$")
"""Ends of the names of classes of attention."""


class Weights(NamedTuple):
    kind: Literal["linear", "head", "embedding", "norm"]
    """``norm``: also all that is neither of the others, such as biases."""
    name: str
    shape: tuple[int, int]
    """Columns and rows of a matrix; (1, numbers) of anything else."""
    times: int

    @property
    def numbers(self) -> int:
        return self.shape[0] * self.shape[1]


class DecoderShape(NamedTuple):
    """Sizes of a decoder, and the work of a token."""

    weights: tuple[Weights, ...]
    active: float
    """Multiplications of a token with the matrices of blocks and the head: of experts, those that it goes to."""
    inner: int
    """Columns inside the feed-forward that a token goes through."""
    head_size: int
    """Columns of a head of queries."""
    windows: tuple[int | None, ...]
    """Tokens that each layer sees; None: all."""
    linear_maps: Mapping[str, bool]
    """Names of the linear maps of blocks, routers left out -> whether attention has them."""
    has_router: bool


_FOUND: dict[str, DecoderShape] = {}


def of(config: PreTrainedConfig) -> DecoderShape:
    """Return the sizes of a configuration that :func:`tape_ds.models.decoder_configuration.check` takes; a model is
    built for them once, however often plan, memory and FLOPs ask."""
    key = f"{config.model_type} {config.to_json_string(use_diff=False)}"
    if key not in _FOUND:
        _FOUND[key] = _counted(config)
    return _FOUND[key]


def _counted(config: PreTrainedConfig) -> DecoderShape:
    model = decoder.on_meta(config)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    chosen = next((getattr(config, name) for name in _ACTIVE if getattr(config, name, None)), 1)
    counted: Counter[tuple[Any, str, tuple[int, int]]] = Counter()
    active, has_experts = float(head.weight.numel()), False
    for path, module in model.named_modules():
        name = path.rpartition(".")[2]
        for kind, parameter in module.named_parameters(recurse=False):
            if module is head and parameter is embedding.weight:  # tied: counted there
                continue
            if parameter.ndim == 3 and _EXPERTS.search(type(module).__name__):
                experts, rows, columns = parameter.shape
                counted["linear", f"{name}.{kind}", (columns, experts * rows)] += 1
                active += min(chosen, experts) * rows * columns
                has_experts = True
            elif parameter.ndim == 2 and module not in (head, embedding):
                rows, columns = parameter.shape
                counted["linear", name, (columns, rows)] += 1
                active += rows * columns
            else:
                named = "embedding" if module is embedding else "head" if module is head else "norm"
                counted[named, kind, (1, parameter.numel())] += 1
    inner = getattr(config, "moe_intermediate_size", None) or getattr(config, "intermediate_size", config.hidden_size)
    inner = (max(inner) if isinstance(inner, list) else inner) * (chosen if has_experts else 1)
    told = config.to_dict()  # the attribute may be refused: Gemma 4's differs between layers
    sizes = (told.get(name) for name in ("qk_head_dim", "head_dim"))
    head_size = next((each for each in sizes if each), config.hidden_size // config.num_attention_heads)
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    kinds = kinds or ["sliding_attention"] * config.num_hidden_layers
    windows = tuple(window if each == "sliding_attention" and window else None for each in kinds)
    weights = tuple(Weights(*key, count) for key, count in counted.items())
    return DecoderShape(weights, active, inner, head_size, windows, _linear_maps(model), bool(routers(model)))


def routers(model: nn.Module) -> dict[str, nn.Module]:
    return {path: module for path, module in model.named_modules() if _ROUTER.search(type(module).__name__)}


def _linear_maps(model: Any) -> dict[str, bool]:
    head, apart, found = model.get_output_embeddings(), tuple(routers(model)), dict[str, bool]()
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head and not (apart and path.startswith(apart)):
            above, _, name = path.rpartition(".")
            found[name] = found.get(name, False) or bool(_ATTENTION.search(type(model.get_submodule(above)).__name__))
    return found


def multiply_adds(config: PreTrainedConfig, length: int, causal: bool = True) -> float:
    """MACs of one forward over one sequence of ``length`` tokens, output head included."""
    shape = of(config)
    columns = config.num_attention_heads * shape.head_size
    seen = sum(min(length / 2 if causal else length, each or length) for each in shape.windows)
    return length * (shape.active + 2 * columns * seen)
