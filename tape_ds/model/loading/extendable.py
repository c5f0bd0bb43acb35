"""From a pretrained folder to the model that is extended, whatever its family.

A Llama-shaped model and a GPT-J become models of this project; any other decoder of transformers is extended by its own
class (:mod:`tape_ds.model.decoder`). All fulfil one protocol: the same forward arguments and ``with_rope_parameters``.
Which kind a model is, is asked here alone.
"""

from pathlib import Path
from typing import Any, TypeAlias

from transformers import PreTrainedConfig

from tape_ds.errors import Problem
from tape_ds.model import convert, decoder, decoder_configuration, gptj, gptj_configuration
from tape_ds.model.configuration import TapeConfig
from tape_ds.model.decoder import ExtendedDecoder
from tape_ds.model.gptj import ScaledGPTJForCausalLM
from tape_ds.model.gptj_configuration import ScaledGPTJConfig
from tape_ds.model.llama import TapeForCausalLM
from tape_ds.model.loading import configuration, families

Config: TypeAlias = TapeConfig | ScaledGPTJConfig | PreTrainedConfig
Model: TypeAlias = TapeForCausalLM | ScaledGPTJForCausalLM | ExtendedDecoder


def read_config(source: str | Path, **hub_arguments: Any) -> PreTrainedConfig:
    """Return the configuration of a folder or hub id, never running code from it; a GPT-J's with the RoPE parameters
    that it has.

    Raises:
        UserError: nothing there, no configuration in it, or one that cannot be read as a model that is extended.
    """
    native = configuration.read(source, **hub_arguments)
    return gptj_configuration.configure(native) if gptj_configuration.recognises(native) else native


def by_own_class(native: PreTrainedConfig) -> bool:
    """Return whether a model is extended by transformers' own class."""
    if gptj_configuration.recognises(native):
        return False
    return not families.has_llamas_names(native) or bool(families.check_llama_shaped(native))


def check(native: PreTrainedConfig) -> list[Problem]:
    """What keeps an architecture from being extended, as :func:`read_config` gave it; empty where nothing does."""
    return decoder_configuration.check(native) if by_own_class(native) else []


def configure(native: PreTrainedConfig, **changes: Any) -> Config:
    """Return the configuration of the extended model: the native one's sizes, and ``changes`` to its fields.

    Raises:
        UserError: a change is unknown, impossible, or not to be had for this family.
    """
    if gptj_configuration.recognises(native):
        return gptj_configuration.configure(native, **changes)
    return (decoder_configuration.configure if by_own_class(native) else convert.tape_config)(native, **changes)


def load(source: str | Path, config: PreTrainedConfig, **arguments: Any) -> Model:
    """Load a pretrained folder or hub id as ``config`` (of :func:`configure`, or read from such a model's folder) says;
    arguments go to ``from_pretrained``.

    Raises:
        UserError: the source is of another family, or its tensors do not fit exactly.
    """
    if isinstance(config, ScaledGPTJConfig):
        return gptj.load(source, config, **arguments)
    if isinstance(config, TapeConfig):
        return convert.load(source, config, **arguments)
    return decoder.load(source, config, **arguments)
