"""What a run's recipe says of optimizer and schedule, held over what a checkpoint brings back of another recipe.

Optimizers and schedulers keep their settings beside their states and restore both: a run that goes on with another
learning rate (``resume_anyway``) would announce the new one and train with the old. Where nothing differs, nothing
changes, to the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SETTINGS = ("weight_decay", "betas", "eps")
"""Of a parameter group, beside its learning rate."""


@dataclass(frozen=True)
class RestoredHparams:
    """Settings of an optimizer and its scheduler that were just made from the recipe.

    Args:
        groups: of each parameter group its :data:`SETTINGS`.
        rates: the learning rate that each group's schedule scales; None where the scheduler scales none.
    """

    groups: Sequence[dict[str, Any]]
    rates: Sequence[float] | None

    @classmethod
    def of(cls, optimizer: Any, scheduler: Any) -> "RestoredHparams":
        """Return what they have now; accelerate's wrappers are looked through."""
        groups = [{name: group[name] for name in SETTINGS if name in group} for group in optimizer.param_groups]
        inner = _bare(scheduler)
        return cls(groups, list(inner.base_lrs) if hasattr(inner, "lr_lambdas") else None)

    def put_back(self, optimizer: Any, scheduler: Any) -> None:
        """Give them these settings again; what the schedule makes of the present step included."""
        for group, own in zip(optimizer.param_groups, self.groups, strict=True):
            group.update(own)
        if self.rates is None:
            return
        inner = _bare(scheduler)
        now = [rate * scale(inner.last_epoch) for rate, scale in zip(self.rates, inner.lr_lambdas, strict=True)]
        inner.base_lrs, inner._last_lr = list(self.rates), now
        for group, rate, present in zip(optimizer.param_groups, self.rates, now, strict=True):
            group["initial_lr"], group["lr"] = rate, present


def _bare(scheduler: Any) -> Any:
    return getattr(scheduler, "scheduler", scheduler)
