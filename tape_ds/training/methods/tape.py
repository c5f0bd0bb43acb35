"""``tape``: position updates, norms and (optionally) embeddings are trained, everything else stays frozen."""

from typing import Any

from torch import nn

from tape_ds.training.methods import groups


def prepare(model: nn.Module, settings: Any) -> nn.Module:
    """Freeze the model but for the groups that the settings switch on.

    Raises:
        UserError: a group is on but empty, such as position updates of an encoding that has none.
    """
    chosen = set(groups.names(model, settings))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    return model
