"""Makes our model types known to transformers' auto classes, without importing transformers or a model.

transformers' tables hold names, and import ``transformers.models.TYPE`` when one of a type is asked for. So our names
are written into its tables as soon as it has made them, and that module is this package, which imports a class when it
is asked for. Where the tables are in use already, the classes are registered as transformers documents it.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NamedTuple

_CONFIGURATIONS = "transformers.models.auto.configuration_auto"
_MODELS = "transformers.models.auto.modeling_auto"


class Names(NamedTuple):
    """The classes of one model type."""

    config: str
    base: str
    causal_lm: str


TYPES = {
    "tape": Names("TapeConfig", "TapeModel", "TapeForCausalLM"),
    "tape_gptj": Names("ScaledGPTJConfig", "ScaledGPTJModel", "ScaledGPTJForCausalLM"),
}


def make_known(package: Any) -> None:
    """Tell transformers, now or when it is imported, of the classes that ``package`` has as attributes."""
    if _MODELS in sys.modules:
        _register(package)
        return
    sys.modules.update({f"transformers.models.{model_type}": package for model_type in TYPES})
    if _CONFIGURATIONS in sys.modules:
        _name(sys.modules[_CONFIGURATIONS])
    sys.meta_path.insert(0, _Finder())


def _register(package: Any) -> None:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    for model_type, names in TYPES.items():
        config = getattr(package, names.config)
        AutoConfig.register(model_type, config, exist_ok=True)
        AutoModel.register(config, getattr(package, names.base), exist_ok=True)
        AutoModelForCausalLM.register(config, getattr(package, names.causal_lm), exist_ok=True)


def _name(tables: Any) -> None:
    """Write our names into the tables of one of the two modules, which has just been run."""
    for model_type, names in TYPES.items():
        if tables.__name__ == _CONFIGURATIONS:
            tables.CONFIG_MAPPING_NAMES[model_type] = names.config
        else:
            tables.MODEL_MAPPING_NAMES[model_type] = names.base
            tables.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] = names.causal_lm


class _Finder(MetaPathFinder):
    """Finds transformers' two modules where Python finds them, and has our names written when they have been run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for every other module."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in (_CONFIGURATIONS, _MODELS) else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_name(module: ModuleType) -> None:
            run(module)
            _name(module)

        spec.loader.exec_module = run_and_name  # type: ignore[method-assign]
        return spec
