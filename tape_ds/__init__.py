"""tape-ds: extend a model's context, and compare positional encodings, on DeepSpeed.

Importing the package imports neither torch nor transformers: a class is imported when it is first used. After
``tape_ds.register()``, ``AutoConfig`` and ``AutoModelForCausalLM`` load saved folders of model type ``tape``
(Llama-shaped) and ``tape_gptj``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tape_ds.registration import register

if TYPE_CHECKING:
    from tape_ds.models.configuration import TapeConfig
    from tape_ds.models.gptj import ScaledGPTJConfig, ScaledGPTJForCausalLM, ScaledGPTJModel
    from tape_ds.models.llama import TapeForCausalLM, TapeModel

__version__ = "0.1.0"
__all__ = [
    "ScaledGPTJConfig",
    "ScaledGPTJForCausalLM",
    "ScaledGPTJModel",
    "TapeConfig",
    "TapeForCausalLM",
    "TapeModel",
    "register",
]
HOMES = {
    "ScaledGPTJConfig": "tape_ds.models.gptj",
    "ScaledGPTJForCausalLM": "tape_ds.models.gptj",
    "ScaledGPTJModel": "tape_ds.models.gptj",
    "TapeConfig": "tape_ds.models.configuration",
    "TapeForCausalLM": "tape_ds.models.llama",
    "TapeModel": "tape_ds.models.llama",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
