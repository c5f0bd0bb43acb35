"""Recipes and command lines made of chance: a launcher answers to all of them with a plan or with one message.

A seeded generator takes a shipped recipe or none, writes fields of the schema into it, some with plain values, some
with strange ones, breaks the text of the file or the order of the words, and hands everything to the launcher's own
``load``. That returns a recipe, whose plan and YAML are then written as ``--dry_run`` and
``--print_config`` do, or raises :class:`tape_ds.errors.UserError`. It never raises anything else, and writes nothing.
"""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch._dynamo  # noqa: F401  # --dry_run imports it, and it makes a folder of its own then
import yaml

from tape_ds.cli import train
from tape_ds.config import extension, files, finetuning, generated, pretraining
from tape_ds.errors import command
from tape_ds.exit_codes import ExitCode
from tests.faults.campaign import Attempt, Campaign
from tests.faults.strange import BYTES, PLAIN, STRANGE, TEXTS, WORDS
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
    """A launcher, and the words after it."""

    launcher: str
    words: list[str]

    def __str__(self) -> str:
        return f"{self.launcher} {' '.join(map(repr, self.words))[:300]}"


def is_process(number: int) -> bool:
    """Whether an attempt starts the launcher as a process as well: 20 of a full run, 1 or 2 of a daily one."""
    return number % 250 == 0 or number % 28 == 1


def typed(draw: random.Random, folder: Path) -> Typed:
    """A recipe and a command line; recipe files are written into ``folder``."""
    launcher = draw.choice(list(KINDS))
    words: list[str] = []
    if draw.random() < 0.6:
        words = ["--recipe", _recipe_file(draw, folder, launcher)]
    elif draw.random() < 0.5:
        words = ["--recipe", draw.choice([*files.shipped(), "nowhere", "Tiny", "tiny.yml", ""])]
    for name, value in _fields(draw, launcher, draw.choice((0, 1, 2, 5))).items():
        words += _flag(draw, name, value)
    for _ in range(draw.choice((0, 0, 1, 3))):
        words.insert(draw.randint(0, len(words)), draw.choice(WORDS))
    if draw.random() < 0.15:
        draw.shuffle(words)
    return Typed(launcher, words)


def _fields(draw: random.Random, launcher: str, count: int) -> dict[str, Any]:
    """Fields with plain values and strange ones."""
    kind, _ = KINDS[launcher]
    names = list(kind.fields())
    return {_field_name(draw, names): draw.choice(draw.choice((PLAIN, STRANGE))) for _ in range(count)}


def _recipe_file(draw: random.Random, folder: Path, launcher: str) -> str:
    """Write a recipe; returns what to call it."""
    path = folder / draw.choice(["recipe.yaml", "recipe.yml", "a recipe.yaml", "récipe.yaml", "..yaml"])
    chance = draw.random()
    if chance < 0.1:
        path.write_bytes(draw.choice(BYTES))
    elif chance < 0.35:
        base = f"base: {draw.choice(files.recipes_of(launcher))}\n" if draw.random() < 0.5 else ""
        path.write_text(base + draw.choice(TEXTS))
    else:
        path.write_bytes(_recipe_text(draw, path, launcher).encode("utf-8", "surrogatepass"))
    return str(path)


def _recipe_text(draw: random.Random, path: Path, launcher: str) -> str:
    """The text of a recipe that builds on a shipped one, on itself, or on nothing, and may be cut or garbled."""
    bases = [*files.recipes_of(launcher), *files.recipes_of(launcher), *files.shipped(), path.name, "nowhere", ""]
    content: dict[Any, Any] = {"base": draw.choice(bases)} if draw.random() < 0.85 else {}
    if draw.random() < 0.3:
        content["launcher"] = draw.choice([*KINDS, launcher, launcher, "nothing", None, 3])
    content |= _fields(draw, launcher, draw.choice((0, 1, 2, 4, 12)))
    try:
        text = yaml.safe_dump(content, allow_unicode=draw.random() < 0.5)
    except yaml.YAMLError:  # what YAML cannot even write
        text = json.dumps(content, default=str)
    if draw.random() < 0.1:
        text = text[: draw.randint(0, len(text))]
    if draw.random() < 0.1 and text:
        place = draw.randrange(len(text))
        text = text[:place] + draw.choice("\x00\t{}[]&*!|>%@`\"'#:-\x85\u2028\ud800") + text[place + 1 :]
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
    (attempt.folder / "typed.json").write_text(json.dumps(entered.words))
    home = mock.patch.dict(os.environ, {"HOME": str(attempt.folder)})
    with contextlib.chdir(attempt.folder), home, watched(allowed=[]) as found:
        code, printed = _in_process(entered)
        attempt.seen.append(f"exit {code}")
        assert not found, f"it touched {found}"
    assert not list(attempt.folder.rglob("pwned")), "text of a recipe was carried out"
    assert code in (0, ExitCode.USER_ERROR) and "Traceback" not in printed, printed
    if is_process(attempt.number):
        _as_process(entered, attempt, code)


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
    """The same from a shell. A text with a null byte cannot be typed there; a lone surrogate is a byte there."""
    words = [word.replace("\x00", "").replace("\ud800", "\udcff") for word in entered.words]
    script = str(ROOT / "launchers" / f"{entered.launcher}.py").encode()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(attempt.folder), "OMP_NUM_THREADS": "1"}
    before = set(attempt.folder.rglob("*"))
    ended = subprocess.run(
        [sys.executable.encode(), script, *(word.encode("utf-8", "surrogateescape") for word in words), b"--dry_run"],
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


CAMPAIGN = Campaign(
    "fuzz",
    count=500,
    daily=10,
    means="A recipe and a command line made of chance go through a launcher's checks, one in 25 of them also as a real "
    "process with --dry_run: exit code 0 or 2, no traceback, no file written, no network.",
    execute=_execute,
)
