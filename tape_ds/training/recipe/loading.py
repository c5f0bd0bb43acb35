"""From a recipe's file and a command line to a checked recipe, or to one message with everything that is wrong.

A recipe comes from a YAML file of ``launchers/recipes`` (or any path), which may build on another by ``base`` and says
by ``launcher`` which launcher it is for, and any field can be overridden on the command line::

    --recipe NAME_OR_PATH        which recipe; the launcher's default without it
    --field VALUE                any field; a list as a,b or a b or JSON, a mapping as JSON, a lone --flag for true
    --field.key VALUE            one key of a mapping; of a flag that is given twice, the last word counts
    --print_config, --dry_run    show the whole recipe, or what it would do, and stop

:func:`load` loads no model and no data and writes nothing.
"""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any
from tape_ds.training.recipe import deepspeed_config, files, paths, trainer_fields, values
from tape_ds.training.recipe.recipe import DERIVED, Recipe

R = TypeVar("R", bound=Recipe)


@functools.cache
def field_hints(kind: type[Recipe]) -> dict[str, Any]:
    """Name -> type of every field that a recipe of this kind may have."""
    found: dict[str, Any] = dict(trainer_fields.hints())
    for section in kind.SECTIONS.values():
        types = get_type_hints(section)
        optional = {each.name for each in dataclasses.fields(section) if each.default is DERIVED}
        found |= {name: hint | None if name in optional else hint for name, hint in types.items()}
    return found | {"global_batch_size": int, "resume": trainer_fields.RESUME}


def load(argv: list[str], kind: type[R], world_size: int | None = None) -> R:
    """Read and check the recipe that a command line asks for.

    Args:
        argv: arguments without the program's name, as DeepSpeed's launcher passes them on (``--local_rank`` included).
        kind: of recipe that the launcher takes.
        world_size: processes of the job; default the environment's WORLD_SIZE, else 1.

    Raises:
        UserError: with everything that is wrong, each with field, value and remedy.
    """
    problems: list[Problem] = []
    flags = files.read_command_line(argv, problems)
    flags.pop("local_rank", None)
    switches = {name: _switch(name, flags, problems) for name in ("print_config", "dry_run")}
    name = _recipe_name(kind, flags, problems)
    collected = files.read_recipe(name, kind.LAUNCHER, problems)
    unreadable = not collected and bool(problems)
    files.require_launcher(name, collected, kind.LAUNCHER)
    collected = files.override(collected, flags, field_hints(kind), problems)
    converted, broken = _convert_all(kind, collected, problems)
    if unreadable:  # the rest would only say that everything is missing
        raise UserError(problems)
    for required in kind.REQUIRED:
        if converted.get(required) is None and required not in broken:
            problems.append(
                Problem(required, None, "missing", f"write {required}: in the recipe, or --{required} VALUE")
            )
            broken.add(required)
    world = world_size or int(os.environ.get("WORLD_SIZE", "1"))
    recipe = _build(kind, Path(name).stem, converted, broken, world, switches, problems)
    for checks in kind.CHECKS:
        problems += checks.run(recipe, broken)
    raise_if_any(problems)
    return recipe


def _switch(name: str, flags: dict[str, list[str]], problems: list[Problem]) -> bool:
    texts = flags.pop(name, ["false"])
    try:
        return values.convert(texts[-1], bool, text=True) if texts else True
    except values.MismatchError as mismatch:
        problems.append(Problem(name, texts[-1], "wrong type (command line)", str(mismatch)))
        return False


def _recipe_name(kind: type[Recipe], flags: dict[str, list[str]], problems: list[Problem]) -> str:
    texts = flags.pop("recipe", [kind.DEFAULT])
    if not texts:
        problems.append(Problem("recipe", None, "the flag has no value", "write --recipe NAME"))
        return kind.DEFAULT
    if len(texts) > 1:
        remedy = "keep one; build one on the other with base:"
        problems.append(Problem("recipe", " ".join(texts), "several recipes", remedy))
    return texts[0]


def _convert_all(
    kind: type[Recipe], collected: files.Collected, problems: list[Problem]
) -> tuple[dict[str, Any], set[str]]:
    """Every known field as its type wants it, and the names of those that are wrong."""
    hints = field_hints(kind)
    converted: dict[str, Any] = {}
    broken: set[str] = set()
    for name, given in collected.items():
        if name not in hints:
            problems.append(_unknown(kind, name, given))
            continue
        try:
            converted[name] = values.convert(given.value, hints[name], given.text)
        except values.MismatchError as mismatch:
            problems.append(Problem(name, given.value, f"wrong type ({given.where})", str(mismatch)))
            broken.add(name)
            continue
        found = [*paths.check(name, converted[name]), *trainer_fields.check_value(name, converted[name])]
        if found:
            problems += found
            broken.add(name)
            del converted[name]
    return trainer_fields.rename(converted, problems), broken


def _unknown(kind: type[Recipe], name: str, given: files.Given) -> Problem:
    former = {**trainer_fields.REMOVED, **kind.FORMER}
    if name in former:
        return Problem(name, given.value, f"no field any more ({given.where})", f"today: {former[name]}")
    known = [*field_hints(kind), "base", "launcher", "recipe", "print_config", "dry_run"]
    return Problem(name, given.value, f"unknown field ({given.where})", did_you_mean(name, known))


def _build(
    kind: type[R],
    name: str,
    converted: dict[str, Any],
    broken: set[str],
    world_size: int,
    switches: dict[str, bool],
    problems: list[Problem],
) -> R:
    """The recipe with every default resolved; broken fields have stand-ins."""
    flat: dict[str, Any] = {key: value for key, value in kind.STAND_INS.items() if key in broken} | converted
    # null is transformers' word for "not given", but for deepspeed, where it means none
    trainer = {key: flat[key] for key in flat if key in trainer_fields.hints() and flat[key] is not None}
    if "deepspeed" in flat:
        trainer["deepspeed"] = flat["deepspeed"]
    kwargs = {"output_dir": f"runs/{name}"} | trainer_fields.DEFAULTS | _owned_defaults() | trainer
    accumulation = kwargs.pop("gradient_accumulation_steps", None)
    if kwargs.get("activation_checkpointing"):
        options = kwargs.get("activation_checkpointing_kwargs") or {}
        kwargs["activation_checkpointing_kwargs"] = {"use_reentrant": False} | options
    chosen, config = kwargs.pop("deepspeed"), None
    if chosen and "deepspeed" not in broken:
        config = deepspeed_config.read(chosen, problems)
    sections = _sections(kind, flat)
    groups = max(1, world_size // max(1, sections["scale"].ways))
    each = kwargs["per_device_train_batch_size"]
    return kind(
        name=name,
        global_batch_size=flat.get("global_batch_size", each * groups * (accumulation or 1)),
        training_kwargs=kwargs,
        deepspeed=config,
        given=frozenset(converted),
        world_size=world_size,
        written_accumulation=accumulation,
        print_config=switches["print_config"],
        dry_run=switches["dry_run"],
        **sections,
    )


def _owned_defaults() -> dict[str, Any]:
    """The owned values that transformers would choose otherwise."""
    owned = {name: entry.value for name, entry in trainer_fields.OWNED.items()}
    return {name: value for name, value in owned.items() if value != trainer_fields.library_default(name)}


def _sections(kind: type[Recipe], flat: dict[str, Any]) -> dict[str, Any]:
    """The sections, defaults that depend on other fields filled in."""
    own: dict[str, Any] = {}
    for section in kind.SECTIONS.values():
        for each in dataclasses.fields(section):
            if each.default_factory is not dataclasses.MISSING:
                own[each.name] = each.default_factory()
            elif each.default is not dataclasses.MISSING:
                own[each.name] = each.default
    # inside a mapping, too, YAML reads 1e6 as a text
    own |= {key: _plain_mapping(value) for key, value in flat.items() if key not in trainer_fields.hints()}
    own |= {key: value for key, value in kind.derived(own).items() if own.get(key) is None}
    return {
        name: section(**{each.name: own[each.name] for each in dataclasses.fields(section)})
        for name, section in kind.SECTIONS.items()
    }


def _plain_mapping(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: values.plain(each) if isinstance(each, str) else each for key, each in value.items()}
