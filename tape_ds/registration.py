"""Our model types: the classes of each, and their registration with transformers' auto classes."""

from importlib import import_module
from typing import Any, NamedTuple


class Names(NamedTuple):
    """The classes of one model type, each by its module and name."""

    config: str
    base: str
    causal_lm: str


TYPES = {
    "tape": Names(
        config="tape_ds.models.configuration.TapeConfig",
        base="tape_ds.models.llama.TapeModel",
        causal_lm="tape_ds.models.llama.TapeForCausalLM",
    ),
    "tape_gptj": Names(
        config="tape_ds.models.gptj.ScaledGPTJConfig",
        base="tape_ds.models.gptj.ScaledGPTJModel",
        causal_lm="tape_ds.models.gptj.ScaledGPTJForCausalLM",
    ),
}
CLASSES = {
    full_name.rpartition(".")[2]: full_name for names in TYPES.values() for full_name in names
}
"""The classes by their names alone, as attributes of ``tape_ds``."""


def load_class(full_name: str) -> Any:
    """Return the class that a module and name mean; the module may take seconds to import."""
    module, _, name = full_name.rpartition(".")
    return getattr(import_module(module), name)


def register() -> None:
    """Let ``AutoConfig``, ``AutoModel`` and ``AutoModelForCausalLM`` load our folders; may be called again."""
    # seconds: not at the import of tape_ds
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    # the configuration first: the other two are found by its class
    for model_type, names in TYPES.items():
        config = load_class(names.config)
        AutoConfig.register(model_type, config, exist_ok=True)
        AutoModel.register(config, load_class(names.base), exist_ok=True)
        AutoModelForCausalLM.register(config, load_class(names.causal_lm), exist_ok=True)
