"""From a recipe's file and a command line to a checked recipe, or to one message with everything that is wrong.

A recipe comes from a YAML file of ``launchers/recipes`` (or any path), which may build on another by ``base`` and says
by ``launcher`` which launcher it is for, and any field can be overridden on the command line (:mod:`.command_line`).
:func:`load` loads no model and no data and writes nothing.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from tape_ds import fields, numbers, paths
from tape_ds.config import command_line, deepspeed_config, files, trainer
from tape_ds.config.recipe import Recipe
from tape_ds.config.trainer import Trainer
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any
from tape_ds.fields import Section

R = TypeVar("R", bound=Recipe)

IN_TOKENS = (
    *("target_length", "window", "eval_length", "eval_lengths", "eval_span", "eval_tokens", "passkey_lengths"),
    *("max_tokens", "min_document_tokens", "group_tokens", "answer_tokens", "sample_tokens"),
)
"""Fields whose numbers may be written as the evaluation's commands take them: ``32k`` is 32,768."""


def sections(kind: type[Recipe]) -> tuple[type[Section], ...]:
    """Return every section of a recipe of this kind, the trainer's last."""
    return (*kind.SECTIONS.values(), Trainer)


@functools.cache
def table(kind: type[Recipe]) -> dict[str, tuple[type[Section], str]]:
    """Name of every field that a recipe of this kind may have -> its section, and its name there."""
    found: dict[str, tuple[type[Section], str]] = {}
    for section in sections(kind):
        found |= section.flat_fields()
    return found | {old: (Trainer, new) for old, new in trainer.RENAMED.items()}


@functools.cache
def field_hints(kind: type[Recipe]) -> dict[str, Any]:
    """Name -> type of every field that a recipe of this kind may have."""
    return {name: section.model_fields[own].annotation for name, (section, own) in table(kind).items()}


def required(kind: type[Recipe]) -> list[str]:
    """Return names of the fields that must be written."""
    return [name for name, (section, own) in table(kind).items() if section.model_fields[own].is_required()]


def load(argv: list[str], world_size: int | None = None, *, kind: type[R], elsewhere: bool = False) -> R:
    """Read and check the recipe that a command line asks for.

    Args:
        argv: arguments without the program's name, as DeepSpeed's launcher passes them on (``--local_rank`` included).
        world_size: processes of the job; default the environment's WORLD_SIZE, else 1.
        kind: of recipe that the launcher takes.
        elsewhere: the run is only looked at, as with ``--dry_run``; see :attr:`Recipe.elsewhere`.

    Raises:
        UserError: with everything that is wrong, each with field, value and remedy.
    """
    problems: list[Problem] = []
    flags = command_line.read(argv, problems)
    flags.pop("local_rank", None)
    switches = {name: command_line.switch(name, flags, problems) for name in ("print_config", "dry_run")}
    name = _recipe_name(kind, flags, problems)
    collected = files.read_recipe(name, kind.LAUNCHER, problems)
    unreadable = not collected and bool(problems)
    files.require_launcher(name, collected, kind.LAUNCHER)
    broken: set[str] = set()
    collected = command_line.override(collected, flags, field_hints(kind), problems)
    values = _checked(kind, collected, problems, broken)
    if unreadable:  # the rest would only say that everything is missing
        raise UserError(problems)
    for needed in required(kind):
        if needed not in values and needed not in broken:
            remedy = f"write {needed}: in the recipe, or --{needed} VALUE"
            problems.append(Problem(needed, None, "missing", remedy))
            broken.add(needed)
    world = world_size or int(os.environ.get("WORLD_SIZE", "1"))
    recipe = _build(kind, Path(name).stem, values, broken, world, problems)
    # before the rules: what is only looked at may look further
    words = (name, *(word for field, texts in flags.items() for word in (f"--{field}", *texts)))
    recipe = dataclasses.replace(recipe, print_config=switches["print_config"], dry_run=switches["dry_run"])
    recipe = dataclasses.replace(recipe, elsewhere=elsewhere or recipe.dry_run, words=words)
    known = {str(problem) for problem in problems}
    problems += {str(each): each for each in recipe.problems(broken) if str(each) not in known}.values()
    raise_if_any(problems)
    return recipe


def _recipe_name(kind: type[Recipe], flags: dict[str, list[str]], problems: list[Problem]) -> str:
    texts = flags.pop("recipe", [kind.DEFAULT])
    if not texts:
        problems.append(Problem("recipe", None, "the flag has no value", "write --recipe NAME"))
        return kind.DEFAULT
    if len(texts) > 1:
        remedy = "keep one; build one on the other with base:"
        problems.append(Problem("recipe", " ".join(texts), "several recipes", remedy))
    return texts[0]


def _checked(
    kind: type[Recipe], collected: files.Collected, problems: list[Problem], broken: set[str]
) -> dict[str, Any]:
    """Return the values that are right by themselves; the names of the others go to ``broken``."""
    known = table(kind)
    values: dict[str, Any] = {}
    for name, given in collected.items():
        if name not in known:
            former = {**trainer.REMOVED, **kind.FORMER}.get(name)
            wrong = f"{'unknown field' if former is None else 'no field any more'} ({given.where})"
            names = [*known, "base", "launcher", "recipe", "print_config", "dry_run"]
            remedy = did_you_mean(name, names) if former is None else f"today: {former}"
            problems.append(Problem(name, given.value, wrong, remedy))
            continue
        annotation = field_hints(kind)[name]
        # null is the word for "not given" wherever it is no value, and everywhere in transformers' fields
        is_trainers = known[name][0] is Trainer and name != "deepspeed"
        if given.value is None and (is_trainers or not fields.takes(annotation, type(None))):
            continue
        value = fields.as_meant(given.value, annotation)
        if name in IN_TOKENS:
            value = [_counted(each) for each in value] if isinstance(value, list) else _counted(value)
        section, own = known[name]
        found = [*paths.check(name, value), *trainer.owned_problem(name, value)]
        for each in [] if found else fields.check(section, {own: value}):
            where = f" ({given.where})" if each.wrong == "wrong type" else ""
            form = " as JSON" if isinstance(value, str) and value[:1] in ("[", "{") else ""
            found.append(dataclasses.replace(each, field=name, wrong=each.wrong + where, remedy=each.remedy + form))
        problems += found
        if found:
            broken.add(name)
        else:
            values[name] = value
    return trainer.rename(values, problems)


def _counted(value: Any) -> Any:
    """``32k`` as 32,768; anything else as it is."""
    found = numbers.tokens(value) if isinstance(value, str) and value[-1:] in ("k", "K") else None
    return value if found is None else found


def _build(
    kind: type[R], name: str, values: Mapping[str, Any], broken: set[str], world_size: int, problems: list[Problem]
) -> R:
    """Return the recipe with every default resolved; broken fields have stand-ins."""
    stand_ins = {key: value for key, value in kind.STAND_INS.items() if key in broken}
    flat = {"output_dir": f"runs/{name}"} | stand_ins | dict(values)
    settings = Trainer.build(flat)
    chosen = settings.value("deepspeed")
    config = deepspeed_config.read(chosen, problems) if chosen and "deepspeed" not in broken else None
    defaults: dict[str, Any] = {}
    for section in kind.SECTIONS.values():
        defaults |= section.build(flat).flat()
    derived = {key: value for key, value in kind.derived(defaults).items() if defaults.get(key) is None}
    own: dict[str, Any] = {key: section.build(flat | derived) for key, section in kind.SECTIONS.items()}
    groups = max(1, world_size // max(1, own["scale"].ways))
    shared = settings.value("per_device_train_batch_size") * groups * settings.gradient_accumulation_steps
    return kind(
        name=name,
        trainer=settings,
        global_batch_size=shared if settings.global_batch_size is None else settings.global_batch_size,
        deepspeed=config,
        given=frozenset(values),
        world_size=world_size,
        **own,
    )
