"""tape-ds: extend a Llama-shaped model's context, and compare positional encodings, on DeepSpeed.

Importing the package registers its classes with transformers: ``AutoConfig`` and ``AutoModelForCausalLM`` then load a
saved folder of model type ``tape`` (Llama-shaped) or ``tape_gptj``.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tape_ds import installation as installation  # first: it ends a script of another checkout
from tape_ds.model.configuration import TapeConfig
from tape_ds.model.gptj import ScaledGPTJForCausalLM, ScaledGPTJModel
from tape_ds.model.gptj_configuration import ScaledGPTJConfig
from tape_ds.model.llama import TapeForCausalLM, TapeModel

__version__ = "0.1.0"
__all__ = [
    "ScaledGPTJConfig",
    "ScaledGPTJForCausalLM",
    "ScaledGPTJModel",
    "TapeConfig",
    "TapeForCausalLM",
    "TapeModel",
]

AutoConfig.register(TapeConfig.model_type, TapeConfig)
AutoModel.register(TapeConfig, TapeModel)
AutoModelForCausalLM.register(TapeConfig, TapeForCausalLM)
AutoConfig.register(ScaledGPTJConfig.model_type, ScaledGPTJConfig)
AutoModel.register(ScaledGPTJConfig, ScaledGPTJModel)
AutoModelForCausalLM.register(ScaledGPTJConfig, ScaledGPTJForCausalLM)
