"""Weights that a run starts from are numbers, on whichever process they are: all processes look, and refuse alike.

Where every step's gradients are NaN, all steps are skipped, and what is saved is as damaged as the base.
"""

import deepspeed
from torch import nn

from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import raise_if_any
from tape_ds.models.files import exact


def require_finite_weights(model: nn.Module, field: str, name: str, rank_sync: RankSync) -> None:
    """Raise UserError on all ranks if a weight on any of them is NaN or infinite; every rank must call it.

    ZeRO-3 has partitioned parameters while it loaded them: they are gathered, one at a time. Ranks that share layers
    hold different columns.

    Args:
        field, name: of the model, for messages.
    """
    own = []
    for parameter_name, parameter in model.named_parameters():
        # does nothing to one that is not partitioned
        with deepspeed.zero.GatheredParameters([parameter]):
            if not exact.is_finite(parameter):
                own.append(parameter_name)
    found = [each for names in rank_sync.objects(own) for each in names]
    raise_if_any(exact.not_finite_weights(list(dict.fromkeys(found)), field, name))
