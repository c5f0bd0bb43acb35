"""tape-ds: extend a model's context, and compare positional encodings, on DeepSpeed.

Importing the package imports neither torch nor transformers: a class is imported when it is first used. After
``tape_ds.register()``, ``AutoConfig`` and ``AutoModelForCausalLM`` load saved folders of model type ``tape``
(Llama-shaped) and ``tape_gptj``.
"""

from typing import TYPE_CHECKING, Any

from tape_ds.registration import CLASSES, load_class, register

# for type checkers, which do not see through CLASSES
if TYPE_CHECKING:
    from tape_ds.models.configuration import TapeConfig as TapeConfig
    from tape_ds.models.gptj import ScaledGPTJConfig as ScaledGPTJConfig
    from tape_ds.models.gptj import ScaledGPTJForCausalLM as ScaledGPTJForCausalLM
    from tape_ds.models.gptj import ScaledGPTJModel as ScaledGPTJModel
    from tape_ds.models.llama import TapeForCausalLM as TapeForCausalLM
    from tape_ds.models.llama import TapeModel as TapeModel

__version__ = "0.1.0"
__all__ = [*CLASSES, "register"]


def __getattr__(name: str) -> Any:
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_class(CLASSES[name])
