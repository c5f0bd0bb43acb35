"""From a pretrained folder to the model that is extended, whatever its family.

A Llama-shaped model becomes one of this project; any other decoder of transformers is extended by its own class
(:mod:`tape_ds.models.decoder`). Both fulfil one protocol: the same forward arguments and ``with_rope_parameters``.
Only this file asks which kind a model is.
"""

from pathlib import Path
from typing import Any, TypeAlias

from transformers import PreTrainedConfig

from tape_ds.errors import Problem
from tape_ds.models import convert, decoder, decoder_configuration
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.decoder import ExtendedDecoder
from tape_ds.models.llama import TapeForCausalLM
from tape_ds.models.loading import families

Config: TypeAlias = TapeConfig | PreTrainedConfig
Model: TypeAlias = TapeForCausalLM | ExtendedDecoder


def by_own_class(native: PreTrainedConfig) -> bool:
    return not families.has_llamas_names(native) or bool(families.check_llama_shaped(native))


def check(native: PreTrainedConfig) -> list[Problem]:
    return decoder_configuration.check(native) if by_own_class(native) else []


def configure(native: PreTrainedConfig, **changes: Any) -> Config:
    """Return the configuration of the extended model: the native one's sizes, and ``changes`` to its fields."""
    return (decoder_configuration.configure if by_own_class(native) else convert.tape_config)(native, **changes)


def load(source: str | Path, config: PreTrainedConfig, **arguments: Any) -> Model:
    """Load a pretrained folder or hub id with ``config`` (of :func:`configure`, or of an extended model's folder);
    arguments go to ``from_pretrained``."""
    if isinstance(config, TapeConfig):
        return convert.load(source, config, **arguments)
    return decoder.load(source, config, **arguments)
