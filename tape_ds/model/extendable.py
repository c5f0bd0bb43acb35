"""From a pretrained folder to the model that is extended, whatever its family: Llama-shaped, or a GPT-J.

The two kinds of model fulfil one protocol: the same forward arguments, ``with_rope_parameters``, an ``encoding`` in
their ``base_model``, and configurations that name sizes, RoPE parameters and encoding alike. Which kind it is, is asked
here alone.
"""

from pathlib import Path
from typing import Any, TypeAlias

from transformers import PreTrainedConfig

from tape_ds.errors import Problem
from tape_ds.model import convert, families, gptj, gptj_configuration
from tape_ds.model.configuration import TapeConfig
from tape_ds.model.gptj import ScaledGPTJForCausalLM
from tape_ds.model.gptj_configuration import ScaledGPTJConfig
from tape_ds.model.llama import TapeForCausalLM

Config: TypeAlias = TapeConfig | ScaledGPTJConfig
Model: TypeAlias = TapeForCausalLM | ScaledGPTJForCausalLM


def read_config(source: str | Path, **hub_arguments: Any) -> PreTrainedConfig:
    """Return the configuration of a folder or hub id, never running code from it; a GPT-J's with the RoPE parameters
    that it has.

    Raises:
        UserError: nothing there, no configuration in it, or one that cannot be read as a model that is extended.
    """
    native = families.read_config(source, **hub_arguments)
    return gptj_configuration.configure(native) if gptj_configuration.recognises(native) else native


def check(native: PreTrainedConfig) -> list[Problem]:
    """What keeps an architecture from being extended, as :func:`read_config` gave it; empty where nothing does."""
    return [] if gptj_configuration.recognises(native) else families.check_llama_shaped(native)


def configure(native: PreTrainedConfig, **changes: Any) -> Config:
    """Return the configuration of the extended model: the native one's sizes, and ``changes`` to its fields.

    Raises:
        UserError: a change is unknown, impossible, or not to be had for this family.
    """
    if gptj_configuration.recognises(native):
        return gptj_configuration.configure(native, **changes)
    return convert.tape_config(native, **changes)


def load(source: str | Path, config: PreTrainedConfig, **arguments: Any) -> Model:
    """Load a pretrained folder or hub id as ``config`` (of :func:`configure`, or read from such a model's folder) says;
    arguments go to ``from_pretrained``.

    Raises:
        UserError: the source is of another family, or its tensors do not fit exactly.
    """
    if isinstance(config, ScaledGPTJConfig):
        return gptj.load(source, config, **arguments)
    assert isinstance(config, TapeConfig), "configurations come from this module"
    return convert.load(source, config, **arguments)
