"""tape-ds: extend a model's context, and compare positional encodings, on DeepSpeed.

Importing the package makes its classes known to transformers: ``AutoConfig`` and ``AutoModelForCausalLM`` then load a
saved folder of model type ``tape`` (Llama-shaped) or ``tape_gptj``. Neither torch nor transformers is imported for
that: the models are imported when transformers' auto classes are, or when they are asked for here.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tape_ds import installation as installation  # first: it ends a script of another checkout
from tape_ds import registration

if TYPE_CHECKING:
    from tape_ds.models.configuration import TapeConfig
    from tape_ds.models.gptj import ScaledGPTJForCausalLM, ScaledGPTJModel
    from tape_ds.models.gptj_configuration import ScaledGPTJConfig
    from tape_ds.models.llama import TapeForCausalLM, TapeModel

__version__ = "0.1.0"
__all__ = [
    "ScaledGPTJConfig",
    "ScaledGPTJForCausalLM",
    "ScaledGPTJModel",
    "TapeConfig",
    "TapeForCausalLM",
    "TapeModel",
]
HOMES = {
    "ScaledGPTJConfig": "tape_ds.models.gptj_configuration",
    "ScaledGPTJForCausalLM": "tape_ds.models.gptj",
    "ScaledGPTJModel": "tape_ds.models.gptj",
    "TapeConfig": "tape_ds.models.configuration",
    "TapeForCausalLM": "tape_ds.models.llama",
    "TapeModel": "tape_ds.models.llama",
}


def __getattr__(name: str) -> Any:
    """One of the classes, imported when it is asked for."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


registration.make_known(sys.modules[__name__])
