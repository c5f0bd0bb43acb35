"""Registers our model types with transformers' auto classes."""

from typing import NamedTuple


class Names(NamedTuple):
    """The classes of one model type, attributes of ``tape_ds``."""

    config: str
    base: str
    causal_lm: str


TYPES = {
    "tape": Names("TapeConfig", "TapeModel", "TapeForCausalLM"),
    "tape_gptj": Names("ScaledGPTJConfig", "ScaledGPTJModel", "ScaledGPTJForCausalLM"),
}


def register() -> None:
    """Let ``AutoConfig``, ``AutoModel`` and ``AutoModelForCausalLM`` load our folders; may be called again."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM  # seconds: not at the import of tape_ds

    import tape_ds

    for model_type, names in TYPES.items():
        config = getattr(tape_ds, names.config)
        AutoConfig.register(model_type, config, exist_ok=True)
        AutoModel.register(config, getattr(tape_ds, names.base), exist_ok=True)
        AutoModelForCausalLM.register(config, getattr(tape_ds, names.causal_lm), exist_ok=True)
