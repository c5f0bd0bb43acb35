"""``--help`` and ``--list`` of the training commands, and docs/fields.md, made of the fields' descriptions."""

import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tape_ds import fields
from tape_ds.config import files, loading, trainer
from tape_ds.config.recipe import Recipe
from tape_ds.config.trainer import Trainer
from tape_ds.errors import Problem, UserError, did_you_mean, is_main_process
from tape_ds.fields import Section

SWITCHES = {
    "--recipe NAME": "a recipe of --list, or the path of a YAML file; default: {default}",
    "--FIELD VALUE": "any field; a list as a,b or a b, a mapping as JSON, --FIELD.KEY VALUE for one key of it; a "
    "number of tokens as 32768 or 32k",
    "--print_config": "print everything that the run depends on, as a recipe, and stop",
    "--dry_run": "check everything, print the plan with the memory it needs, and stop",
    "--list": "the recipes of this launcher, a line each",
    "--help FIELD": "one field in full",
}
USUAL = (
    *("global_batch_size", "per_device_train_batch_size", "max_steps", "num_train_epochs", "learning_rate"),
    *("lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "optim", "bf16", "fp16"),
    *("activation_checkpointing", "deepspeed", "seed", "output_dir", "resume_from_checkpoint", "save_strategy"),
    *("save_steps", "save_total_limit", "logging_steps", "report_to", "run_name"),
)
"""Fields of the trainer that ``--help`` describes; of the others it tells the names."""
OURS = {
    "deepspeed": "ZeRO by the name of a file in ds_configs (zero1, zero2, zero3, zero3_offload, ...), the path of a "
    "DeepSpeed JSON, or the JSON itself; null trains without DeepSpeed. auto: of zero1, zero2 and zero3 the one "
    "that the plan chooses (docs/memory.md).",
    "resume_from_checkpoint": "Go on from a checkpoint: its path, true for the newest of output_dir, auto for the "
    "newest if there is one. Short: --resume.",
    "output_dir": "Folder of the run: checkpoints, log, results, trained weights. Default runs/RECIPE.",
    "activation_checkpointing": "Compute activations again in the backward instead of keeping them: see "
    "checkpoint_layers. auto: as the plan chooses; it chooses checkpoint_layers too where that is not given.",
}
"""Descriptions of transformers' fields that mean something else here."""


def answered(argv: list[str], kind: type[Recipe]) -> bool:
    """Return whether a command line asks for help or for the list of recipes; the main process then prints it.

    Raises:
        UserError: help is wanted with a field that there is not.
    """
    words = [word for word in argv if not word.startswith("--local_rank")]
    if "--list" in words:
        text = "\n".join(_recipes(kind))
    elif words[:1] in (["--help"], ["-h"]) and len(words) > 1:
        text = "\n\n".join("\n".join(_one(kind, name.lstrip("-").replace("-", "_"))) for name in words[1:])
    elif "--help" in words or "-h" in words:
        text = "\n".join(_whole(kind))
    else:
        return False
    if is_main_process():
        print(text)
    return True


def _whole(kind: type[Recipe]) -> Iterator[str]:
    yield f"usage: {sys.argv[0]} [--recipe NAME] [--FIELD VALUE ...]\n"
    yield from _table({name: text.format(default=kind.DEFAULT) for name, text in SWITCHES.items()})
    for section in loading.sections(kind):
        yield f"\n{_title(section)}:"
        yield from _table({f"--{name}": _described(*loading.table(kind)[name]) for name in _names(kind, section)})
        rest = [name for name in trainer.FIELDS if name not in (*USUAL, *trainer.OWNED, *trainer.RENAMED)]
        if section is Trainer:
            yield _wrapped("and every other field of transformers' TrainingArguments: " + ", ".join(rest), "  ")


def page(kinds: Sequence[type[Recipe]]) -> str:
    """docs/fields.md, of these kinds of recipes: this stack's own fields, the same with any version of transformers."""
    shared = list(Recipe.SECTIONS.values())
    own = {"global_batch_size", *OURS}
    defaults = ", ".join(f"`{name}: {_shown(value)}`" for name, value in trainer.DEFAULTS.items())
    lines = [
        *("# Fields of a recipe", ""),
        "Of every launcher, section by section; each can stand in a recipe or on the command line. This page is what",
        "`--help` says; `--help FIELD` says it of one.",
    ]
    for kind in kinds:
        sections = [section for section in loading.sections(kind) if section not in (*shared, Trainer)]
        lines += ["", f"## launchers/{kind.LAUNCHER}.py", *_listed(kind, sections)]
    lines += ["", "## All launchers", *_listed(kinds[0], shared)]
    lines += [f"\n### {_title(Trainer)}\n", *_described_fields(kinds[0], [name for name in USUAL if name in own]), ""]
    lines += [textwrap.fill(_LIBRARY.format(defaults=defaults), 140, break_long_words=False, break_on_hyphens=False)]
    return "\n".join(lines) + "\n"


_LIBRARY = (
    "Every other field of transformers' [TrainingArguments](https://huggingface.co/docs/transformers/main_classes/trainer"
    "#transformers.TrainingArguments) is taken as well: `--help` lists those of the installed version. "
    "Defaults of ours: {defaults}."
)


def _listed(kind: type[Recipe], sections: Sequence[type[Section]]) -> Iterator[str]:
    for section in sections:
        yield f"\n### {_title(section)}\n"
        yield from _described_fields(kind, _names(kind, section))


def _described_fields(kind: type[Recipe], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        where, own = loading.table(kind)[name]
        text = f"- `{name}` ({fields.spelled(where.model_fields[own].annotation)}): {_described(where, own)}"
        yield textwrap.fill(text, 140, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _names(kind: type[Recipe], section: type[Section]) -> list[str]:
    """Return the fields of a section that are described: all, but of the trainer's the usual ones."""
    if section is Trainer:
        return list(USUAL)
    inner = {field.annotation for field in section.model_fields.values()}
    return [name for name, (where, _) in loading.table(kind).items() if where is section or where in inner]


def _one(kind: type[Recipe], name: str) -> Iterator[str]:
    """Yield a field in full."""
    known = loading.table(kind)
    if name not in known:
        former = {**trainer.REMOVED, **kind.FORMER}.get(name)
        remedy = f"today: {former}" if former else did_you_mean(name, known)
        raise UserError(Problem("help", name, "unknown field", remedy))
    section, own = known[name]
    field = section.model_fields[own]
    yield f"--{name}  ({fields.spelled(field.annotation)})"
    yield _wrapped(_described(section, own), "  ")
    if name in trainer.OWNED:
        owned = trainer.OWNED[name]
        yield _wrapped(f"It stays {_shown(owned.value)} here: {owned.reason}; {owned.remedy}.", "  ")


def _recipes(kind: type[Recipe]) -> Iterator[str]:
    found = {name: files.about(name) for name in files.recipes_of(kind.LAUNCHER)}
    width = max(map(len, found))
    return (f"{name:<{width}}  {text}" for name, text in found.items())


def _title(section: type[Section]) -> str:
    return _plain(inspect.getdoc(section) or section.__name__).split(". ")[0].rstrip(".")


def _described(section: type[Section], own: str) -> str:
    """Return what a field is, and its default where the description does not say it."""
    field = section.model_fields[own]
    text = _plain(OURS.get(own) or field.description or "")
    if field.is_required():
        return f"{text} Required.".strip()
    value = field.get_default(call_default_factory=True)
    return text if value is None or value in ([], {}, "", False) else f"{text} [{_shown(value)}]".strip()


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    """reStructuredText's marks taken out, on one line."""
    return " ".join(re.sub(r":\w+:`[~.]*([^`]*)`|``([^`]*)``", r"\1\2", text).split())


def _table(rows: Mapping[str, str]) -> Iterator[str]:
    for name, text in rows.items():
        yield _wrapped(text, " " * 34, f"  {name:<32}" if len(name) < 32 else f"  {name}\n{' ' * 34}")


def _wrapped(text: str, indent: str, first: str | None = None) -> str:
    width = min(shutil.get_terminal_size((120, 40)).columns, 120)
    body = textwrap.fill(text, max(width - len(indent), 20))
    return (indent if first is None else first) + body.replace("\n", f"\n{indent}")


if __name__ == "__main__":
    from tape_ds.config.kinds import KINDS

    print(page([*KINDS.values()]), end="")
