"""The section of every recipe that says how an encoding's own parameters are stepped, beside all others.

TAPE's updates start at zero and have as many steps as the rest of the model to become something: at its learning rate a
short run leaves them there, and weight decay pulls them back. Which parameters these are is said by
:func:`tape_ds.methods.groups.position_modules`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from tape_ds.errors import Problem
from tape_ds.fields import Section, rule
from tape_ds.recipe import deepspeed_config
from tape_ds.recipe.command_line import plain
from tape_ds.recipe.trainer import Whole

_RATE, _DECAY = "position_learning_rate", "position_weight_decay"
_OWN_GROUPS = ("galore", "apollo", "lomo", "adalomo")
"""How the names of optimizers begin that divide a model's parameters themselves."""


class Optimization(Section):
    """Learning rate and weight decay of position parameters."""

    position_learning_rate: float | str | None = None
    """Learning rate of the encoding's own parameters, which the schedule scales like any other: a number, or a factor
    of ``learning_rate`` such as ``10x``; null: ``learning_rate``."""
    position_weight_decay: float = Field(0.0, ge=0)
    """Weight decay of the encoding's own parameters; ``weight_decay`` does not reach them."""

    def position_rate(self, learning_rate: float) -> float:
        """The learning rate of position parameters, where that of all others is ``learning_rate``."""
        given = self.position_learning_rate
        if given is None:
            return learning_rate
        return learning_rate * (_factor(given) or 0.0) if isinstance(given, str) else given

    def outline(self, learning_rate: float) -> str:
        """Both, for ``--dry_run``."""
        factor = f" ({self.position_learning_rate})" if isinstance(self.position_learning_rate, str) else ""
        rate = f"learning rate {self.position_rate(learning_rate):g}{factor}"
        return f"{rate}, weight decay {self.position_weight_decay:g}"

    @rule(_RATE)
    def _range(self, whole: Whole) -> Iterator[Problem]:
        rate = self.position_learning_rate
        number = _factor(rate) if isinstance(rate, str) else rate
        if rate is not None and (number is None or number <= 0):
            wrong = "neither a learning rate nor a factor" if number is None else "out of range"
            yield Problem(_RATE, rate, wrong, "give a number above 0, a factor of learning_rate such as 10x, or null")

    @rule(_RATE, _DECAY, "position_encoding", "position_options", "method", "train_position")
    def _trained(self, whole: Whole) -> Iterator[Problem]:
        yield from check_trained(self, whole.trains_positions)

    @rule(_RATE, _DECAY, "optim", "deepspeed")
    def _others(self, whole: Whole) -> Iterator[Problem]:
        """What would step position parameters like all others."""
        rate, optim = self.position_learning_rate, whole.trainer_value("optim")
        if rate is None:
            return
        if optim.startswith(_OWN_GROUPS):
            wrong = f"optim = {optim!r} divides the model's parameters by itself"
            yield Problem(_RATE, rate, wrong, "remove it, or use optim: adamw_torch")
        if deepspeed_config.lookup(whole.deepspeed or {}, "scheduler") is not None:
            wrong = "the scheduler in the DeepSpeed JSON gives all parameters the same learning rate"
            yield Problem(_RATE, rate, wrong, "remove the scheduler block from the JSON: the trainer's does the same")


def _factor(text: str) -> float | None:
    """10 of ``10x``."""
    number: Any = plain(text[:-1]) if text.endswith("x") else None
    return float(number) if type(number) in (int, float) else None


def learns(encoding: str, options: Mapping[str, Any]) -> bool:
    """Whether this encoding has parameters of its own to train; no where its name or options are wrong."""
    from tape_ds.model import positions

    return not positions.check_options(encoding, options) and positions.learns(encoding, options)


def check_trained(optimization: Optimization, trained: bool) -> Iterator[Problem]:
    """Whether there is anything that the fields could be about.

    Args:
        optimization: as loaded.
        trained: whether parameters of an encoding are.
    """
    default = Optimization()
    for name in (_RATE, _DECAY):
        value = getattr(optimization, name)
        if not trained and value != getattr(default, name):
            remedy = f"remove it (where a base has it: {name}: {'null' if name == _RATE else 0}), or train an encoding "
            wrong = "no parameters of a positional encoding are trained"
            yield Problem(name, value, wrong, remedy + "that has such: tape, fire, t5, or any with abacus")
