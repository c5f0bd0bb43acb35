"""The optimizer's groups of parameters: which learning rate and weight decay reach which of them.

Matrices decay, embeddings among them; vectors and numbers (norms, biases, scales) do not, nor do the rates and short
convolutions of recurrent layers, of any shape. transformers chooses by names instead. An encoding's parameters, of any
shape, are always a separate group, so that a run can be resumed with another learning rate for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import TrainingArguments

from tape_ds.config.sections import Optimization
from tape_ds.methods.groups import position_parameters
from tape_ds.models.recurrent import rates_and_convolutions

MATRICES = "matrices"
VECTORS = "vectors"
POSITIONS = "position parameters"


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are stepped alike."""

    kind: str
    parameters: Mapping[str, nn.Parameter]
    """By name."""
    learning_rate: float
    """At the top of the schedule, which scales that of every group alike."""
    weight_decay: float

    def __str__(self) -> str:
        return (
            f"{self.kind}: learning rate {self.learning_rate:g}, weight decay {self.weight_decay:g}"
        )


def divide(
    model: nn.Module, arguments: TrainingArguments, optimization: Optimization
) -> list[ParameterGroup]:
    """Return the groups of trained parameters, position parameters last; none is empty."""
    found: dict[str, dict[str, nn.Parameter]] = {MATRICES: {}, VECTORS: {}, POSITIONS: {}}
    positions = position_parameters(model)
    undecayed = rates_and_convolutions(model)
    rate = arguments.learning_rate
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            # sharded, it has one dimension
            shape = getattr(parameter, "ds_shape", parameter.shape)
            kind = MATRICES if len(shape) > 1 and name not in undecayed else VECTORS
            if name in positions:
                kind = POSITIONS
            found[kind][name] = parameter
    groups = (
        ParameterGroup(MATRICES, found[MATRICES], rate, arguments.weight_decay),
        ParameterGroup(VECTORS, found[VECTORS], rate, 0.0),
        ParameterGroup(
            POSITIONS,
            found[POSITIONS],
            optimization.position_rate(rate),
            optimization.position_weight_decay,
        ),
    )
    return [group for group in groups if group.parameters]


def for_optimizer(
    model: nn.Module, arguments: TrainingArguments, optimization: Optimization
) -> list[dict[str, Any]]:
    return [
        {
            "params": [*group.parameters.values()],
            "lr": group.learning_rate,
            "weight_decay": group.weight_decay,
        }
        for group in divide(model, arguments, optimization)
    ]
