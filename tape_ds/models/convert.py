"""Weights in and out: a Llama becomes a TAPE model (and, for ``rope``, a Llama again).

Nothing is matched loosely: every key of the source must have its place, and every parameter must be filled, but for
those of the encoding, which a Llama cannot have. TAPE's start at zero effect, so that the Llama's logits stay; those of
other encodings start as in a new model, and the log says which they are. Checkpoints of the published TAPE code
load through :mod:`tape_ds.models.loading.reference_checkpoint`.
"""

import copy
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from tape_ds import encodings
from tape_ds.encodings import trained_rope
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.llama import TapeForCausalLM
from tape_ds.models.loading import configuration
from tape_ds.models.loading.families import QWEN2, QWEN3, check_llama_shaped
from tape_ds.models.loading.weight_files import fill, load_exact

logger = logging.getLogger(__name__)

_OWN = (".position.", "model.encoding.")
"""Where the names of an encoding's parameters have their kind behind them."""
_HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# Not what describes a class rather than a model: a copied ``model_type`` would shadow the new configuration's own.
_CLASS_FIELDS = {"architectures", "model_type", "transformers_version"}
_LLAMA_FIELDS = set(LlamaConfig.__dataclass_fields__) - _CLASS_FIELDS


def tape_config(source: PreTrainedConfig, **changes: Any) -> TapeConfig:
    """Return a ``TapeConfig`` with the source's sizes; ``changes`` replace or add fields."""
    raise_if_any(check_llama_shaped(source))
    fields = {name: copy.deepcopy(value) for name, value in source.to_dict().items() if name in _LLAMA_FIELDS}
    rope = trained_rope.read(source.to_dict(), source.name_or_path or source.model_type)
    fields["rope_parameters"] = dict(rope.parameters)
    fields["qkv_bias"] = source.model_type == QWEN2
    fields["qk_norm"] = source.model_type == QWEN3
    if source.model_type == TapeConfig.model_type:
        own = ("position_encoding", "position_options", "state_dtype", "attention_backend", "qkv_bias", "qk_norm")
        fields |= {name: copy.deepcopy(getattr(source, name)) for name in own}
    known = set(TapeConfig.__dataclass_fields__)
    raise_if_any(
        [Problem(name, changes[name], "no field of TapeConfig", "see TapeConfig") for name in changes.keys() - known]
    )
    return TapeConfig(**(fields | changes))


def load(source: str | Path, config: TapeConfig, **arguments: Any) -> TapeForCausalLM:
    """Load a Llama's (or TAPE model's) folder or hub id as ``config`` says; arguments go to ``from_pretrained``."""
    hub_arguments = {name: value for name, value in arguments.items() if name in _HUB_ARGUMENTS}
    raise_if_any(check_llama_shaped(configuration.read(source, **hub_arguments)))

    def required(model: Any, missing: Collection[str]) -> list[str]:
        present = {_position_kind(name) for name, _ in model.named_parameters() if name not in missing}
        if new := sorted({_position_kind(name) for name in missing} - present - {""}):
            logger.info("new parameters of the encoding %s: %s", config.position_encoding, ", ".join(new))
        return [name for name in missing if _position_kind(name) not in new]

    model: TapeForCausalLM = load_exact(TapeForCausalLM, source, required, config=config, **arguments)
    return model


def _position_kind(name: str) -> str:
    """Return the end of an encoding parameter's name, the same in every layer; "" for other parameters."""
    return next((name.partition(own)[2] for own in _OWN if own in name), "")


def to_plain(model: TapeForCausalLM) -> LlamaForCausalLM | Qwen2ForCausalLM | Qwen3ForCausalLM:
    """transformers' own model with the same weights and RoPE parameters: a Llama, a Qwen2 where queries, keys and
    values have biases and outputs none, or a Qwen3 where queries and keys have norms."""
    config = model.config
    rope_parameters = encodings.llama_rope_parameters(config)
    if rope_parameters is None:
        remedy = "only RoPE scaling that transformers knows makes a plain Llama; keep others as model type 'tape'"
        encoding = f"{config.position_encoding}, {config.rope_parameters['rope_type']} RoPE"
        encoding += f", {config.position_options}" if config.position_options else ""
        raise UserError(Problem("position_encoding", encoding, "not expressible as a Llama", remedy))
    kind: Any = LlamaForCausalLM
    if config.qkv_bias or config.qk_norm:
        kind = Qwen2ForCausalLM if config.qkv_bias else Qwen3ForCausalLM
    known = set(kind.config_class.__dataclass_fields__) - _CLASS_FIELDS
    fields = {name: value for name, value in config.to_dict().items() if name in known}
    if config.qkv_bias and config.head_dim * config.num_attention_heads != config.hidden_size:
        fields["head_dim"] = config.head_dim  # no field of Qwen2's, but its attention reads it
    with torch.device("meta"):
        plain = kind(kind.config_class(**fields | {"rope_parameters": rope_parameters}))
    plain = fill(plain, model.state_dict(), "state dict")
    # its frequencies are a buffer outside the state dict, still on the meta device
    plain.model.rotary_emb = type(plain.model.rotary_emb)(plain.config).to(model.device)
    plain.generation_config = copy.deepcopy(model.generation_config)
    return plain
