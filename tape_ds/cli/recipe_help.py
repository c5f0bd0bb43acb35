"""``--help`` and ``--list`` of the training commands, and docs/fields.md, made of the fields' descriptions."""

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from tape_ds import fields
from tape_ds.config import files, trainer
from tape_ds.config.recipe import Recipe
from tape_ds.config.trainer import Trainer
from tape_ds.distributed.launch_command import COMMANDS
from tape_ds.errors import Problem, UserError, did_you_mean, is_main_process
from tape_ds.fields import Section

SWITCHES = {
    "RECIPE, --recipe RECIPE": "a recipe of --list, or the path of a YAML file; default: {default}",
    "--FIELD VALUE": "any field; a list as a,b or a b, a mapping as JSON, --FIELD.KEY VALUE for one key of it; a "
    "number of tokens as 32768 or 32k",
    "--FIELD, --no_FIELD": "true, false",
    "--print_config": "print everything that the run depends on, as a recipe, and stop",
    "--dry_run": "check everything, print the plan with the memory it needs, and stop",
    "--list": "the recipes of this command, a line each",
    "--help FIELD": "one field in full",
}
USUAL = (
    *(
        "global_batch_size",
        "per_device_train_batch_size",
        "max_steps",
        "num_train_epochs",
        "learning_rate",
    ),
    *(
        "lr_scheduler_type",
        "warmup_steps",
        "weight_decay",
        "max_grad_norm",
        "optim",
        "bf16",
        "fp16",
    ),
    *(
        "activation_checkpointing",
        "deepspeed",
        "seed",
        "output_dir",
        "resume_from_checkpoint",
        "save_strategy",
    ),
    *("save_steps", "save_total_limit", "logging_steps", "report_to", "run_name"),
)
"""Fields of the trainer that ``--help`` describes; the others it only lists."""
_DOCUMENTED = (
    "deepspeed",
    "resume_from_checkpoint",
    "output_dir",
    "activation_checkpointing",
    "global_batch_size",
)
"""Fields of these that mean something else than in transformers."""


def answered(argv: list[str], kind: type[Recipe]) -> bool:
    """Print help or the list of recipes on the main process if a command line asks for it, and return whether it does.
    Raises UserError: help is asked for an unknown field."""
    # launchers add it
    words = [word for word in argv if not word.startswith("--local_rank")]
    lines: list[str] = []
    if "--list" in words:
        summaries = {name: files.about(name) for name in files.recipes_of(kind.LAUNCHER)}
        width = max(map(len, summaries))
        lines += [f"{name:<{width}}  {text}" for name, text in summaries.items()]
    elif words[:1] in (["--help"], ["-h"]) and len(words) > 1:
        known = kind.fields()
        for word in words[1:]:
            name = word.lstrip("-").replace("-", "_")
            name = trainer.ALIASES.get(name, name)
            if name not in known:
                raise UserError(Problem("help", name, "unknown field", did_you_mean(name, known)))
            if lines:
                lines.append("")
            lines.append(f"--{name}  ({fields.spelled(known[name].annotation)})")
            text = _described(known[name])
            text = text or "A field of transformers' TrainingArguments, see its documentation."
            lines.append(_wrapped(text, "  "))
            # fields that a recipe may name, but not change
            if (owned := trainer.OWNED.get(name)) is not None:
                default = _shown(known[name].default)
                lines.append(
                    _wrapped(f"It stays {default} here: {owned.reason}; {owned.remedy}.", "  ")
                )
    elif "--help" in words or "-h" in words:
        lines.append(f"usage: {COMMANDS[kind.LAUNCHER]} [RECIPE] [--FIELD VALUE ...]\n")
        lines += _table(
            {name: text.format(default=kind.DEFAULT) for name, text in SWITCHES.items()}
        )
        for section in kind.SECTIONS.values():
            lines.append(f"\n{_title(section)}:")
            lines += _table(
                {f"--{name}": _described(field) for name, field in section.flat_fields().items()}
            )
        lines.append(f"\n{_title(Trainer)}:")
        lines += _table({f"--{name}": _described(Trainer.model_fields[name]) for name in USUAL})
        rest = [name for name in trainer.FIELDS if name not in (*USUAL, *trainer.OWNED)]
        lines.append(
            _wrapped(
                "and every other field of transformers' TrainingArguments: " + ", ".join(rest), "  "
            )
        )
    if lines and is_main_process():
        print("\n".join(lines))
    return bool(lines)


def page(kinds: Sequence[type[Recipe]]) -> str:
    """Return docs/fields.md for these kinds of recipes: this stack's own fields."""
    shared = list(Recipe.SECTIONS.values())
    defaults = ", ".join(
        f"`{name}: {_shown(value)}`" for name, value in trainer.OURS.items() if name in USUAL
    )
    lines = [
        *("# Fields of a recipe", ""),
        "The fields of every training command, for a recipe or the command line. `--help` prints the same, and",
        "`--help FIELD` one of them.",
    ]
    groups: dict[str, list[type[Section]]] = {}
    for kind in kinds:
        title = COMMANDS[kind.LAUNCHER]
        groups[f"{title}, of SCROLLS" if title in groups else title] = [*kind.SECTIONS.values()]
    listed: set[str] = set()
    for title, sections in (*groups.items(), ("Every command", shared)):
        lines += ["", f"## {title}"]
        for section in sections:
            if section in shared and sections is not shared:
                continue
            lines.append(f"\n### {_title(section)}\n")
            # a field that an earlier command has in the same words is only named
            again = []
            for name, field in section.flat_fields().items():
                line = _line(name, field)
                if line in listed:
                    again.append(f"`{name}`")
                else:
                    lines.append(line)
                    listed.add(line)
            if again:
                lines.append(_filled(f"- As above: {', '.join(again)}."))
    lines.append(f"\n### {_title(Trainer)}\n")
    lines += [_line(name, Trainer.model_fields[name]) for name in USUAL if name in _DOCUMENTED]
    lines += [
        "",
        textwrap.fill(
            _LIBRARY.format(defaults=defaults), 140, break_long_words=False, break_on_hyphens=False
        ),
    ]
    return "\n".join(lines) + "\n"


_LIBRARY = (
    "Every other field of transformers' [TrainingArguments](https://huggingface.co/docs/transformers/main_classes/trainer"
    "#transformers.TrainingArguments) is taken as well: `--help` lists those of the installed version. "
    "Defaults of ours: {defaults}."
)


def _line(name: str, field: FieldInfo) -> str:
    return _filled(f"- `{name}` ({_type(field.annotation)}): {_described(field)}")


def _type(annotation: Any) -> str:
    """Return a type as Python writes it, without what checks its values."""
    origin = get_origin(annotation)
    inner = get_args(annotation)
    if origin is Annotated:
        return _type(inner[0])
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " or ".join(map(_type, inner))
    if origin is list:
        return f"list of {_type(inner[0])}"
    if annotation is NoneType:
        return "null"
    return (origin or annotation).__name__


def _filled(text: str) -> str:
    return textwrap.fill(
        text, 140, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _title(section: type[Section]) -> str:
    return _plain(inspect.getdoc(section) or section.__name__).split(". ")[0].rstrip(".")


def _described(field: FieldInfo) -> str:
    """Return what a field is, and its default where the description does not have it."""
    text = _plain(field.description or "")
    if field.is_required():
        return f"{text} Required.".strip()
    value = field.get_default(call_default_factory=True)
    if value is None or value in ([], {}, "", False):
        return text
    return f"{text} [{_shown(value)}]".strip()


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _plain(text: str) -> str:
    """Return a docstring without reStructuredText's marks, on one line."""
    return " ".join(re.sub(r":\w+:`[~.]*([^`]*)`|``([^`]*)``", r"\1\2", text).split())


def _table(rows: Mapping[str, str]) -> Iterator[str]:
    for name, text in rows.items():
        first = f"  {name:<32}"
        # a longer name gets a separate line
        if len(name) >= 32:
            first = f"  {name}\n{' ' * 34}"
        yield _wrapped(text, " " * 34, first)


def _wrapped(text: str, indent: str, first: str | None = None) -> str:
    width = min(shutil.get_terminal_size((120, 40)).columns, 120)
    body = textwrap.fill(text, max(width - len(indent), 20))
    return (indent if first is None else first) + body.replace("\n", f"\n{indent}")


if __name__ == "__main__":
    from tape_ds.config.kinds import KINDS

    print(page([*KINDS.values()]), end="")
