"""From a recipe's file and a command line to a checked recipe, or to one message with everything that is wrong.

A recipe is a YAML file of ``launchers/recipes`` or of any path. It may build on another by ``base``, names its launcher
by ``launcher``, and any field can be overridden on the command line (:mod:`.command_line`). :func:`load` loads no model
and no data and writes nothing.
"""

import dataclasses
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tape_ds import fields, paths
from tape_ds.config import command_line, deepspeed_config, files, trainer
from tape_ds.config.recipe import Recipe
from tape_ds.config.trainer import Trainer
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any
from tape_ds.fields import Section

R = TypeVar("R", bound=Recipe)


def load(
    argv: list[str], world_size: int | None = None, *, kind: type[R], elsewhere: bool = False
) -> R:
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
    # DeepSpeed's launcher gives it
    heads = {name: name.partition(".") for name in flags if name != "local_rank"}
    flags = {
        trainer.ALIASES.get(head, head) + dot + rest: flags[name]
        for name, (head, dot, rest) in heads.items()
    }
    print_config, dry_run = (
        command_line.switch(name, flags, problems) for name in ("print_config", "dry_run")
    )
    texts = flags.pop("recipe", [kind.DEFAULT])
    name = texts[0] if texts else kind.DEFAULT
    if not texts:
        problems.append(Problem("recipe", None, "the flag has no value", "write --recipe NAME"))
    if len(texts) > 1:
        remedy = "keep one; build one on the other with base:"
        problems.append(Problem("recipe", " ".join(texts), "several recipes", remedy))
    collected = files.read_recipe(name, kind.LAUNCHER, problems)
    unreadable = not collected and bool(problems)
    files.require_launcher(name, collected, kind.LAUNCHER)

    # values under the names that fields have here; two names with two values contradict each other
    for old, new in trainer.ALIASES.items():
        given = collected.pop(old, None)
        other = collected.get(new)
        if given is None or given.value is None:
            continue
        if other is None or other.value is None:
            collected[new] = given
        elif other.value != given.value:
            problems.append(
                Problem(old, given.value, f"contradicts {new} = {other.value!r}", f"keep {new}")
            )

    collected = command_line.override(collected, flags, kind.fields(), problems)
    left_out = kind.superseded(collected)
    collected = {field: given for field, given in collected.items() if field not in left_out}
    values, found = _checked(kind, collected)
    if unreadable:  # then every required field is missing
        raise UserError([*problems, *(each for each in found.values() if each.wrong != "missing")])
    problems += found.values()
    world = world_size or int(os.environ.get("WORLD_SIZE", "1"))
    recipe = _build(kind, Path(name).stem, values, found.keys(), world, problems)
    # before the rules: a recipe that is only looked at may look further
    recipe = dataclasses.replace(
        recipe,
        elsewhere=elsewhere or dry_run,
        words=(name, *(word for field, texts in flags.items() for word in (f"--{field}", *texts))),
        print_config=print_config,
        dry_run=dry_run,
        left_out=left_out,
    )
    known = {str(problem) for problem in problems}
    problems += {
        str(each): each for each in recipe.problems({*found}) if str(each) not in known
    }.values()
    raise_if_any(problems)
    return recipe


def _checked(
    kind: type[Recipe], collected: files.Collected
) -> tuple[dict[str, Any], dict[str, Problem]]:
    """Return the values that are valid by themselves, and the problems of the other fields by their names."""
    known = kind.fields()
    values: dict[str, Any] = {}
    found: dict[str, Problem] = {}
    for name, given in collected.items():
        if name not in known:
            remedy = did_you_mean(
                name, [*known, "base", "launcher", "recipe", "print_config", "dry_run"]
            )
            found[name] = Problem(name, given.value, f"unknown field ({given.where})", remedy)
        # null stands for "not given" wherever it is no value, and in all of transformers' fields
        elif given.value is not None or (
            fields.takes(known[name].annotation, type(None))
            and (name not in trainer.FIELDS or name == "deepspeed")
        ):
            values[name] = given.value
            for each in paths.check(name, given.value):
                found[name] = each
            default = known[name].default
            owned = trainer.OWNED.get(name)
            is_empty = default is None and given.value in ("", {}, [])
            if owned is not None and given.value != default and not is_empty:
                shown = "null" if default is None else str(default).lower()
                found[name] = Problem(
                    name, given.value, f"must stay {shown}: {owned.reason}", owned.remedy
                )
    sections: tuple[type[Section], ...] = (*kind.SECTIONS.values(), Trainer)
    for section in sections:
        own = {
            name: values[name]
            for name in section.flat_fields()
            if name in values and name not in found
        }
        for each in section.check(own):
            place = collected[each.field].where if each.field in collected else ""
            where = ""
            if place and each.wrong == "wrong type":
                where = f" ({place})"
            form = ""
            if isinstance(each.value, str) and each.value[:1] in ("[", "{"):
                form = " as JSON"
            better = dataclasses.replace(each, wrong=each.wrong + where, remedy=each.remedy + form)
            found.setdefault(each.field, better)
    return {name: value for name, value in values.items() if name not in found}, found


def _build(
    kind: type[R],
    name: str,
    values: Mapping[str, Any],
    broken: Collection[str],
    world: int,
    problems: list[Problem],
) -> R:
    """Return the recipe with every default resolved; broken fields have stand-ins."""
    flat = {"output_dir": f"runs/{name}"} | {
        key: kind.STAND_INS[key] for key in kind.STAND_INS if key in broken
    }
    flat |= values
    settings = _section(Trainer, flat)
    chosen = settings.value("deepspeed")
    draft = kind(
        name=name,
        trainer=settings,
        global_batch_size=0,
        deepspeed=deepspeed_config.read(chosen, problems)
        if chosen and "deepspeed" not in broken
        else None,
        given=frozenset(values),
        world_size=world,
        **{key: _section(section, flat) for key, section in kind.SECTIONS.items()},
    )
    derived = draft.derived()
    sections: dict[str, Any] = {}
    for key in kind.SECTIONS:
        section = getattr(draft, key)
        own = {each: derived[each] for each, value in section if value is None and each in derived}
        sections[key] = section.model_copy(update=own)
    groups = max(1, world // max(1, draft.scale.ways))
    shared = (
        settings.value("per_device_train_batch_size")
        * groups
        * settings.gradient_accumulation_steps
    )
    return dataclasses.replace(
        draft,
        global_batch_size=shared
        if settings.global_batch_size is None
        else settings.global_batch_size,
        **sections,
    )


def _section(section: type[Section], flat: Mapping[str, Any]) -> Any:
    return section.build({name: flat[name] for name in section.flat_fields() if name in flat})
