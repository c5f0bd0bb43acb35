"""Commands of the book, read by the programs' own parsers: nothing is run.

A program is called with the command line of the page, and stopped where it has read all of it: a tool where its parser
returns, a launcher where its recipe is loaded and checked, an experiment where its first run would start.
"""

import argparse
import contextlib
import importlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from unittest import mock

from tape_ds.cli.program import MODULES, TRAINING, split
from tape_ds.errors import Problem, UserError
from tests.docs import pages
from tests.docs.pages import Block

PROGRAMS = ("launchers", "tools", "evaluation", "benchmarks")
PLACEHOLDERS = {
    r"\bRECIPE\b": "llama2_7b_8k",
    r"(?<=[ =])N\b": "8",
    "<encoding>": "tape",
    "<method>": "lora",
    "<data set>": "qasper",
    "<scaling>": "yarn",
    "<length>": "16k",
}
WORLDS = (1, 2, 8, 16)
"""Numbers of processes for a command that has none; it has to be right with one of them."""
WRAPPER = "tape_ds.cli.keep_alive"
"""It reads its own options and starts another command."""

# What stops a program, by module: a reader is called and then stops it, work is never called.
READERS = {
    None: "argparse.ArgumentParser.parse_args",
    "tape_ds.cli.train": "tape_ds.config.loading.load",
    "tools.experiments.pose_coverage": "tape_ds.config.loading.load",
    "tape_ds.cli.plan": "tape_ds.config.loading.load",
}
WORK = {
    "tools.experiment": (
        "tools.experiment.__main__.outline",
        "tools.experiment.__main__.markdown_table",
        "tools.experiment.pages.overview",
    ),
}
PAST = re.compile(
    r"tools/compare_(methods|encodings|arithmetic|addressing)\.py|tools\.(reproduce|stability|visualise|flops)\b|tools/flops\.py|launchers/train_arithmetic\.py"
)
"""Programs of stored results that exist only at the results' commit."""
NOT_HERE = re.compile(
    r"no such (file|folder)|no file matches|not found|not installed|no CUDA|offline"
)
"""In messages about what a reader has and this machine lacks: data, models, checkpoints, a GPU."""

_LINE = re.compile(r"""(?:'[^']*'|"[^"]*"|\\.|[^'"\\#]|(?<=\S)\#)*""")
_OPTIONAL = re.compile(r"\[(-[^\]]*)\]")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")


class Read(BaseException):
    """Raised in place of a program's work; nothing on the way may catch it."""


class WrongCommandError(AssertionError):
    """Raised for a command that its program would refuse, or that does not exist."""


@dataclass(frozen=True)
class Command:
    place: str
    text: str
    words: tuple[str, ...]
    is_partial: bool = False
    """Whether it is in a sentence, where arguments may be left out."""

    def __str__(self) -> str:
        return f"{self.place}  {self.text}"


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block that start one of our programs; in a sentence, those that are written out."""
    if block.info is None and (
        "..." in block.text or not ("--" in block.text or block.text.startswith("make "))
    ):
        return
    if block.info not in (None, "", "sh", "bash", "shell", "console"):
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        if PAST.search(line) and block.page.is_relative_to(pages.ROOT / "docs" / "results"):
            continue
        found = _LINE.match(line.strip())
        text = _OPTIONAL.sub(r"\1", found[0] if found else "")
        for placeholder, value in PLACEHOLDERS.items():
            text = re.sub(placeholder, value, text)
        try:
            words = [word for word in shlex.split(text) if word != "..."]
        except ValueError:  # prose with an apostrophe
            continue
        for part in parts(words):
            if part and starts_ours(part):
                yield Command(block.place, line.strip(), tuple(part), block.info is None)


def parts(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the commands of a pipe, without variables that are set for them."""
    part: list[str] = []
    for word in [*words, "|"]:
        if word in ("|", "&&", ";"):
            yield part
            part = []
        elif part or not _VARIABLE.match(word):
            part.append(word)


def starts_ours(words: Sequence[str]) -> bool:
    program = PurePath(words[0]).name
    if program in ("make", "tape-ds"):
        return len(words) > 1
    if PurePath(words[0]).parts[0] in PROGRAMS and words[0].endswith(".py"):
        return len(words) > 1  # alone it is a file's name
    known = program in ("deepspeed", "torchrun", "sbatch", "python", "python3")
    return known and any(PurePath(word).parts and module_of(word) for word in words[1:])


def module_of(word: str) -> str | None:
    """Return the module of ours that a path or a dotted name means."""
    is_file = word.endswith((".py", ".sbatch"))
    first = PurePath(word).parts[0] if is_file else word.split(".")[0]
    if first not in PROGRAMS:
        return None
    return ".".join(PurePath(word).with_suffix("").parts) if is_file else word


def check(words: Sequence[str], is_partial: bool = False) -> None:
    """Raise WrongCommandError if a command's program would refuse it; a partial one may lack arguments."""
    program = PurePath(words[0]).name
    if program == "make":
        check_make(words[1:])
    elif program == "tape-ds":
        check_tape_ds(words[1:], is_partial)
    elif program == "deepspeed":
        check_deepspeed(words[1:])
    elif program == "torchrun":
        check_torchrun(words[1:])
    elif program == "sbatch":
        script = next(number for number, word in enumerate(words) if word.endswith(".sbatch"))
        check_exists(words[script])
        check_program(words[script + 1], words[script + 2 :], None)
    else:
        start = 0 if program.endswith(".py") else 2 if words[1] == "-m" else 1
        check_program(words[start], words[start + 1 :], None, is_partial)


def check_make(words: Sequence[str]) -> None:
    text = (pages.ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        variable = _VARIABLE.match(word)
        wanted = rf"^{variable[0][:-1]} \?=" if variable else rf"^{re.escape(word)}:"
        if not re.search(wanted, text, re.M):
            raise WrongCommandError(f"the Makefile has no {word}")


def check_tape_ds(words: Sequence[str], is_partial: bool) -> None:
    if words[0] in ("--help", "--folder"):
        return
    name = words[0].replace("_", "-")
    if name not in MODULES:
        raise WrongCommandError(f"tape-ds has no {words[0]}")
    options, arguments = (
        split(words[1:]) if name in TRAINING or name == "evaluate" else ([], words[1:])
    )
    if options:
        check_deepspeed([*options, "--module", "tape_ds", name, *arguments])
    else:
        check_program("tape_ds", [name, *arguments], None, is_partial)


def check_deepspeed(words: Sequence[str]) -> None:
    from deepspeed.launcher import runner

    with exits("deepspeed"):
        found = runner.parse_args(list(words))
    check_program(
        found.user_script, found.user_args, found.num_gpus if found.num_gpus > 0 else None
    )


def check_torchrun(words: Sequence[str]) -> None:
    from torch.distributed.run import get_args_parser

    with exits("torchrun"):
        found = get_args_parser().parse_args(list(words))
    nodes = int(str(found.nnodes).split(":")[0])
    each = int(found.nproc_per_node) if str(found.nproc_per_node).isdigit() else 8
    check_program(found.training_script, found.training_script_args, nodes * each)


def check_exists(path: str) -> None:
    if not (pages.ROOT / path).is_file():
        raise WrongCommandError(f"{path} does not exist")


def check_program(
    word: str, arguments: Sequence[str], world: int | None, is_partial: bool = False
) -> None:
    """Call one of our programs as far as it reads its arguments."""
    module = word if word == "tape_ds" else module_of(word)
    if module is None or word.endswith(".py"):
        check_exists(word)
    if module is None:
        return
    if door(module, arguments)[0] == WRAPPER:
        found = read(module, arguments, None)
        if getattr(found, "command", None) not in ([], ["COMMAND"]):
            check(found.command)
        return
    wrong: list[Problem] = []
    for count in [world] if world else WORLDS:
        try:
            read(module, arguments, count, is_partial)
            return
        except UserError as error:
            wrong = [
                each
                for each in error.problems
                if not NOT_HERE.search(f"{each.wrong} {each.remedy}")
            ]
            if not wrong:
                return
            if not any("processes" in str(each) for each in wrong):
                break
    raise WrongCommandError("\n".join(map(str, wrong)))


def door(module: str, arguments: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
    """Return the module with a program's ``main``, and the arguments of that."""
    if module == "tape_ds":
        name, rest = arguments[0], list(arguments[1:])
        if name == "experiment":
            return "tools.experiment", (rest,)
        return f"tape_ds.cli.{MODULES[name]}", (TRAINING[name], rest) if name in TRAINING else (
            rest,
        )
    if module == "evaluation":
        return "tape_ds.cli.evaluate", (list(arguments),)
    script = pages.ROOT / f"{module.replace('.', '/')}.py"
    text = script.read_text(encoding="utf-8") if script.is_file() else ""
    found = re.search(
        r"from (tape_ds\.cli\.\w+) import main\s+sys\.exit\(main\((?:\"(\w+)\")?\)\)", text
    )
    if found is None:
        return module, ()
    return found[1], (found[2], list(arguments)) if found[2] else (list(arguments),)


def read(module: str, arguments: Sequence[str], world: int | None, is_partial: bool = False) -> Any:
    """Return what a program makes of its command line; None where it ends before any work."""
    module, given = door(module, arguments)
    is_package = (pages.ROOT / module.replace(".", "/") / "__main__.py").is_file()
    with contextlib.ExitStack() as patched:
        patched.enter_context(mock.patch("signal.signal"))  # keep_alive's handlers would stay
        patched.enter_context(exits(module, list(arguments) if is_partial else None))
        patched.enter_context(mock.patch.object(sys, "argv", [module, *arguments]))
        imported = importlib.import_module(f"{module}.__main__" if is_package else module)
        main = getattr(imported.main, "__wrapped__", imported.main)
        patched.enter_context(mock.patch("tape_ds.errors.report", raise_again))
        for target in WORK.get(module, ()):
            patched.enter_context(mock.patch(target, stopped))
        if module not in WORK:
            target = READERS.get(module, READERS[None])
            patched.enter_context(mock.patch(target, reading(target, world)))
        try:
            main(*given)
        except Read as done:
            return done.args[0] if done.args else None
    return None


def reading(target: str, world: int | None) -> Callable[..., Any]:
    """Return a reader that ends the program after its work."""
    owner, _, attribute = target.rpartition(".")
    if owner.endswith("ArgumentParser"):
        original: Callable[..., Any] = argparse.ArgumentParser.parse_args
        return lambda *given, **named: stopped(original(*given, **named))
    load = getattr(importlib.import_module(owner), attribute)
    return lambda argv, world_size=None, **options: stopped(
        load(argv, world or world_size, **options)
    )


def stopped(*found: Any) -> Any:
    raise Read(*found)


def raise_again(*_: Any) -> None:
    """Raise the error that is being handled, in place of showing it."""
    raise


@contextlib.contextmanager
def exits(program: str, partial: Sequence[str] | None = None) -> Iterator[None]:
    """Turn argparse's exits into WrongCommandError; the options of a ``partial`` command must all be known."""
    said: list[str] = []

    def error(parser: argparse.ArgumentParser, message: str) -> None:
        said.append(message)
        if partial is not None and message.startswith("the following arguments are required"):
            options = {word.split("=")[0] for word in partial if word.startswith("--")}
            unknown = options - set(parser._option_string_actions)
            if not unknown:
                raise Read
            said.append(f"unknown: {', '.join(sorted(unknown))}")
        raise SystemExit(2)

    with (
        mock.patch("argparse.ArgumentParser.error", error),
        mock.patch("tape_ds.arguments.Parser.error", error),
    ):
        try:
            yield
        except SystemExit as left:
            if left.code not in (0, None):
                raise WrongCommandError(f"{program}: {' '.join(said) or left.code}") from left
