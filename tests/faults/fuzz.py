"""Recipes and command lines made of chance: a launcher answers to all of them with a plan or with one message.

A seeded generator takes a shipped recipe or none, writes fields of the schema into it, some with values of their type,
some with what no type wants, breaks the text of the file or the order of the words, and hands everything to the
launcher's own ``load``. That returns a recipe, whose plan and YAML are then written as ``--dry_run`` and
``--print_config`` do, or raises :class:`tape_ds.errors.UserError`. It never raises anything else, and writes nothing.
"""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch._dynamo  # noqa: F401  # --dry_run imports it, and it makes a folder of its own then
import yaml

from tape_ds.cli import train
from tape_ds.config import extension, files, finetuning, generated, pretraining
from tape_ds.errors import command
from tape_ds.exit_codes import ExitCode
from tests.faults.campaign import Attempt, Campaign
from tests.faults.strange import BYTES, STRANGE, TEXTS, WORDS
from tests.faults.writes import watched
from tests.processes import ROOT

KINDS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "extend_llama": (extension.ExtensionRecipe, extension.load),
    "pretrain_c4": (pretraining.PretrainingRecipe, pretraining.load),
    "finetune": (finetuning.ChatRecipe, finetuning.load_chat),
    "finetune_scrolls": (finetuning.ScrollsRecipe, finetuning.load),
    "train_arithmetic": (generated.GeneratedRecipe, generated.load),
}
SECONDS = 120
"""A launcher that only looks has to end within so much."""


@dataclass(frozen=True)
class Typed:
    """What somebody typed."""

    launcher: str
    words: list[str]
    """The command line, without the program."""
    stories: list[str]
    """What is strange about it."""

    def __str__(self) -> str:
        return f"{self.launcher} {' '.join(map(repr, self.words))[:300]}"


def is_process(number: int) -> bool:
    """Whether an attempt starts the launcher as a process as well: 20 of a full run, 1 or 2 of a daily one."""
    return number % 250 == 0 or number % 28 == 1


def typed(draw: random.Random, folder: Path) -> Typed:
    """A recipe and a command line; recipe files are written into ``folder``."""
    launcher = draw.choice(list(KINDS))
    kind, _ = KINDS[launcher]
    stories: list[str] = []
    words: list[str] = []
    if draw.random() < 0.8:
        name = _recipe_file(draw, folder, launcher, stories) if draw.random() < 0.75 else _shipped(draw, stories)
        words += ["--recipe", name]
    hints = {name: field.annotation for name, field in kind.fields().items()}
    for _ in range(draw.choice((0, 1, 2, 5))):
        name = _field_name(draw, list(hints))
        words += _flag(draw, name, _value(draw, hints.get(name, str)))
    for _ in range(draw.choice((0, 0, 1, 3))):
        word = draw.choice(WORDS)
        stories.append(f"word {word[:60]!r}")
        words.insert(draw.randint(0, len(words)), word)
    if draw.random() < 0.15 and words:
        draw.shuffle(words)
        stories.append("words shuffled")
    return Typed(launcher, words, stories)


def _shipped(draw: random.Random, stories: list[str]) -> str:
    name = draw.choice([*files.shipped(), "nowhere", "Tiny", "tiny.yml", ""])
    stories.append(f"recipe {name!r}")
    return name


def _recipe_file(draw: random.Random, folder: Path, launcher: str, stories: list[str]) -> str:
    """Write a recipe; returns what to call it."""
    path = folder / draw.choice(["recipe.yaml", "recipe.yml", "a recipe.yaml", "récipe.yaml", "..yaml"])
    chance = draw.random()
    if chance < 0.1:
        path.write_bytes(draw.choice(BYTES))
        stories.append("a file that is no text")
    elif chance < 0.35:
        text = draw.choice(TEXTS)
        path.write_text(text if draw.random() < 0.5 else f"base: {draw.choice(files.recipes_of(launcher))}\n{text}")
        stories.append(f"file {text[:60]!r}")
    else:
        path.write_bytes(_recipe_text(draw, path, launcher, stories).encode("utf-8", "surrogatepass"))
    return str(path)


def _recipe_text(draw: random.Random, path: Path, launcher: str, stories: list[str]) -> str:
    """The text of a recipe that builds on a shipped one, on itself, or on nothing, and may be cut or garbled."""
    kind, _ = KINDS[launcher]
    hints = {name: field.annotation for name, field in kind.fields().items()}
    bases = [*files.recipes_of(launcher), *files.recipes_of(launcher), *files.shipped(), path.name, "nowhere", ""]
    content: dict[Any, Any] = {"base": draw.choice(bases)} if draw.random() < 0.85 else {}
    if draw.random() < 0.3:
        content["launcher"] = draw.choice([*KINDS, launcher, launcher, "nothing", None, 3])
    for _ in range(draw.choice((0, 1, 2, 4, 12))):
        name = _field_name(draw, list(hints))
        content[name] = _value(draw, hints.get(name, str))
        stories.append(f"{name} = {str(content[name])[:40]!r}")
    try:
        text = yaml.safe_dump(content, allow_unicode=draw.random() < 0.5)
    except yaml.YAMLError:  # what YAML cannot even write
        text = json.dumps(content, default=str)
    if draw.random() < 0.1:
        text = text[: draw.randint(0, len(text))]
        stories.append("cut")
    if draw.random() < 0.1 and text:
        place = draw.randrange(len(text))
        text = text[:place] + draw.choice("\x00\t{}[]&*!|>%@`\"'#:-\x85\u2028\ud800") + text[place + 1 :]
        stories.append(f"character {place} replaced")
    return text


def _field_name(draw: random.Random, names: list[str]) -> str:
    """A field's name, now and then misspelt, of old, or none at all."""
    name = draw.choice(names)
    chance = draw.random()
    if chance < 0.05:
        place = draw.randrange(len(name))
        return name[:place] + name[place + 1 :]
    if chance < 0.08:
        return draw.choice(["lr", "num_epochs", "local_rank", "__class__", "self", "", "a.b", "seed ", "é"])
    return name


def _value(draw: random.Random, hint: Any) -> Any:
    """For half of the fields a value of their type, for the others anything."""
    return _fitting(draw, hint) if draw.random() < 0.5 else draw.choice(STRANGE)


def _fitting(draw: random.Random, hint: Any) -> Any:
    """A value of this type, not always a sensible one."""
    kind: Any = get_origin(hint) or hint
    if kind is Literal:
        return draw.choice(get_args(hint))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return draw.choice(list(kind)).value
    if kind is list:
        item = (get_args(hint) or (str,))[0]
        return [_fitting(draw, item) for _ in range(draw.randint(0, 3))]
    simple: dict[Any, Callable[[], Any]] = {
        bool: lambda: draw.random() < 0.5,
        int: lambda: draw.choice((0, 1, 2, 4, 8, 64, 1000, 10**6, -1)),
        float: lambda: draw.choice((0.0, 1e-4, 0.5, 1.0, 3.0, 1e6, -1.0)),
        str: lambda: draw.choice(("tape", "rope", "smollm2", "zero1", "zero3", "adamw_torch", "no", "stdlib")),
        dict: lambda: {draw.choice(("rope_type", "factor", "use_reentrant", "k")): draw.choice((1, 2.0, "yarn", None))},
    }
    if kind in simple:
        return simple[kind]()
    members = [member for member in get_args(hint) if member is not type(None)]
    return _fitting(draw, draw.choice(members)) if members else None


def _flag(draw: random.Random, name: str, value: Any) -> list[str]:
    """A field as words of a command line."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if isinstance(value, list) and draw.random() < 0.5:
        return [f"--{name}", *(str(item) for item in value)]
    if draw.random() < 0.1:
        return [f"--{name}"]
    return [f"--{name}={text}"] if draw.random() < 0.5 else [f"--{name}", text]


def _execute(attempt: Attempt) -> None:
    entered = typed(attempt.draw, attempt.folder)
    attempt.what = str(entered)
    attempt.seen.append(", ".join(entered.stories) or "nothing strange")
    (attempt.folder / "typed.json").write_text(json.dumps(entered.words))
    with _away(attempt.folder), watched(allowed=[]) as found:
        code, printed = _in_process(entered)
        attempt.seen.append(f"exit {code}")
        assert not found, f"it touched {found}"
    assert not list(attempt.folder.rglob("pwned")), "text of a recipe was carried out"
    assert code in (0, ExitCode.USER_ERROR) and "Traceback" not in printed, printed
    if is_process(attempt.number):
        _as_process(entered, attempt, code)


@contextlib.contextmanager
def _away(folder: Path) -> Iterator[None]:
    """Stand in ``folder``, which is home as well."""
    before, home = os.getcwd(), os.environ.get("HOME")
    os.chdir(folder)
    os.environ["HOME"] = str(folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("HOME")
        if home is not None:
            os.environ["HOME"] = home


def _in_process(entered: Typed) -> tuple[int, str]:
    """The launcher's checks and its plan, as ``main`` makes them; exit code, and what is printed."""
    _, load = KINDS[entered.launcher]
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # as strict as a real one

    @command
    def main() -> int:
        recipe = load(entered.words, world_size=1)
        print(recipe.to_yaml())
        print(train.describe(recipe))
        return 0

    errors = io.StringIO()
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(errors):
        code = main()
        terminal.flush()
    return code, errors.getvalue()


def _as_process(entered: Typed, attempt: Attempt, code: int) -> None:
    """The same from a shell. A text with a null byte cannot be typed there."""
    words = [word.replace("\x00", "").encode("utf-8", "surrogateescape") for word in map(_typable, entered.words)]
    script = str(ROOT / "launchers" / f"{entered.launcher}.py").encode()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(attempt.folder), "OMP_NUM_THREADS": "1"}
    before = set(attempt.folder.rglob("*"))
    ended = subprocess.run(
        [sys.executable.encode(), script, *words, b"--dry_run"],
        cwd=attempt.folder,
        env=environment,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    printed = (ended.stdout + ended.stderr).decode("utf-8", "replace")
    attempt.seen.append(f"as a process: exit {ended.returncode}")
    assert ended.returncode in (0, ExitCode.USER_ERROR) and "Traceback" not in printed, printed[-3000:]
    if not any("\x00" in word for word in entered.words):
        assert ended.returncode == code, f"{ended.returncode} as a process, {code} within this one: {printed[-2000:]}"
    made = set(attempt.folder.rglob("*")) - before
    assert not made, f"a look left {sorted(made)}"


def _typable(word: str) -> str:
    """Lone surrogates as the bytes that a command line has for them."""
    return word.replace("\ud800", "\udcff")


CAMPAIGN = Campaign(
    "fuzz",
    count=500,
    daily=10,
    means="A recipe and a command line made of chance go through a launcher's checks, one in 25 of them also as a real "
    "process with --dry_run: exit code 0 or 2, no traceback, no file written, no network.",
    execute=_execute,
)
