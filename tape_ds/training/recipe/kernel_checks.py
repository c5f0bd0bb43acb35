"""Whether optional kernels that a recipe insists on can run on this machine."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tape_ds.errors import Problem
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    import torch

    from tape_ds.training.recipe.recipe import Recipe

CHECKS = Checks()


@CHECKS.reads("liger", "use_cpu")
def _liger(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.model.liger != "on":
        return
    from tape_ds.model import liger

    if (reason := liger.why_not(_device(recipe))) is not None:
        remedy = "give auto (used where it can be), or pip install liger-kernel on a machine with a GPU"
        yield Problem("liger", "on", reason, remedy)


@CHECKS.reads("attention_backend", "use_cpu")
def _attention(recipe: "Recipe") -> Iterator[Problem]:
    """Unknown names are for the checks of the model."""
    from tape_ds.model import attention

    named = attention.requested(recipe.model.attention_backend)
    if named in attention.available() and (problem := attention.missing(named, _device(recipe).type)) is not None:
        yield problem


def _device(recipe: "Recipe") -> "torch.device":
    """Where the run will compute."""
    import torch

    on_cpu = recipe.trainer_value("use_cpu") or os.environ.get("DS_ACCELERATOR") == "cpu"
    return torch.device("cuda" if torch.cuda.is_available() and not on_cpu else "cpu")
