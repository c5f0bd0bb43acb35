"""What an experiment costs: minutes of two cores as they were measured, GPU hours as the planner predicts them.

Training runs alone are predicted: what evaluations, downloads and preparations take is in no figure, and said so.
"""

import contextlib
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tape_ds.errors import UserError
from tape_ds.planning import hardware
from tape_ds.planning.plan import Plan
from tape_ds.training import forecast, model_config
from tools import plan
from tools.reproduce.experiment import Form, Place, Step

STAND_IN = "meta-llama/Llama-2-7b-hf"
"""A model that recipes take without its being at hand, for runs that start from one that is yet to be trained."""


@dataclass(frozen=True)
class Cluster:
    """What paper-scale runs are planned for."""

    gpu: str = "a100-80"
    """A name of :data:`tape_ds.planning.hardware.GPUS`."""
    gpus: int = 8
    price: float | None = None
    """Of one GPU for an hour, in any currency."""


@dataclass(frozen=True)
class Cost:
    """Of one command, or of several."""

    hours: float
    """On all GPUs together."""
    gpu_hours: float
    fits: bool = True


def of_step(step: Step, place: Place, cluster: Cluster) -> Cost | str | None:
    """What a training run costs; None for what is none, or why nobody can say."""
    words = step.command(place)
    script = next((at for at, word in enumerate(words) if word.startswith("launchers/")), None)
    if script is None or step.minutes is not None:
        return None
    return _of_run(tuple(words[script + 1 :]), step.starts_from, cluster)


@functools.cache
def _of_run(words: tuple[str, ...], starts_from: str | None, cluster: Cluster) -> Cost | str:
    """Of a launcher's command line."""
    at = words.index("--recipe")
    fields = _without([*words[:at], *words[at + 2 :]], ("--output_dir", "--resume"))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what DeepSpeed says when it is imported
            origin = plan.load(starts_from, [], cluster.gpus) if starts_from is not None else None
            own = fields if origin is None else [*_without(fields, ("--model",)), "--model", STAND_IN]
            recipe = plan.load(words[at + 1], own, cluster.gpus)
            config = model_config.beforehand(recipe if origin is None else origin)
            found = Plan(forecast.job(recipe, config, cluster.gpus, hardware.find(cluster.gpu)))
    except UserError as error:
        return "; ".join(f"{problem.field}: {problem.wrong}" for problem in error.problems)
    return Cost(found.hours, found.hours * cluster.gpus, found.fits)


def _without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """A command line without some options and their values."""
    return [word for at, word in enumerate(words) if word not in options and (at == 0 or words[at - 1] not in options)]


def of_form(form: Form, place: Place, cluster: Cluster) -> Cost | None:
    """All training runs of a form together; None where it has none for GPUs, or one cannot be predicted."""
    found = [cost for step in form.steps if (cost := of_step(step, place, cluster)) is not None]
    known = [cost for cost in found if isinstance(cost, Cost)]
    if not known or len(known) < len(found):
        return None
    return Cost(sum(c.hours for c in known), sum(c.gpu_hours for c in known), all(c.fits for c in known))


def told(cost: Cost | str | None, cluster: Cluster) -> str:
    """A cost in words; nothing for what trains nothing."""
    if cost is None:
        return ""
    if isinstance(cost, str):
        return f"not predicted ({cost})"
    price = "" if cluster.price is None else f", {cost.gpu_hours * cluster.price:,.0f} at {cluster.price:g} a GPU hour"
    short = "" if cost.fits else ", and it does not fit"
    return f"{cost.hours:,.1f} h on {cluster.gpus} x {cluster.gpu}, {cost.gpu_hours:,.0f} GPU hours{price}{short}"
