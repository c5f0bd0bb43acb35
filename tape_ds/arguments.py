"""The one parser of command lines: a mistake is a line that names the argument, its value and what was meant."""

import argparse
import difflib
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tape_ds.errors import GRACE_SECONDS, Problem, did_you_mean, is_main_process, redacted
from tape_ds.exit_codes import ExitCode

DTYPES = ("auto", "float32", "bfloat16", "float16")
"""What a model's weights may be asked to load as, or to be written as."""


class Parser(argparse.ArgumentParser):
    """argparse's, whose description is shown as it is written and whose options are written out.

    Where it is asked to know every argument (:meth:`parse_args`), an option that it does not know is told before one
    that is missing: a mistyped option is both.
    """

    def __init__(self, **options: Any):
        ours: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(**ours | options)

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """As argparse's; a mistake ends the program with exit code 2."""
        words = sys.argv[1:] if args is None else list(args)
        self._refuse_unknown(words)
        return super().parse_args(words, namespace)

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        ends = [*words, "--"].index("--")
        for number, word in enumerate(words[:ends]):
            name = word.partition("=")[0]
            if not name.startswith("--") or " " in name or name in self._option_string_actions:
                continue
            follows = words[number + 1 : number + 2]
            shown = " ".join([word, *(each for each in follows if "=" not in word and not each.startswith("-"))])
            named = [option[2:] for option in self._option_string_actions if option.startswith("--")]
            close = difflib.get_close_matches(name[2:], named, n=1)
            self.error(f"{shown}: unknown option; " + (f"did you mean '--{close[0]}'?" if close else "see --help"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value!r} is unknown; {did_you_mean(value, action.choices)}")

    def error(self, message: str) -> NoReturn:
        """One line from rank 0, and the exit code of everything that a user can mend."""
        if is_main_process():
            print(f"error: {redacted(message)}", file=sys.stderr, flush=True)
        else:
            time.sleep(GRACE_SECONDS)
        raise SystemExit(ExitCode.USER_ERROR)


def add_base_anyway(parser: Any) -> None:
    """Let trained weights be put onto a base that is not the one they were trained on."""
    parser.add_argument(
        "--base_anyway",
        action="store_true",
        help="load trained weights onto the base that is found now, although it is not the one they were trained on",
    )


def below_one(options: argparse.Namespace, *names: str) -> list[Problem]:
    """Numbers of these options that are given and below 1."""
    given = {name: vars(options)[name] for name in names}
    return [
        Problem(f"--{name}", value, "is below 1", "give 1 or more")
        for name, value in given.items()
        if value is not None and value < 1
    ]


def named(typed: str) -> tuple[str | None, str]:
    """Split ``NAME=MODEL``; an existing path that contains ``=`` has no name."""
    name, equals, name_or_path = typed.partition("=")
    return (name, name_or_path) if equals and name and not Path(typed).exists() else (None, typed)


def without_local_rank(words: Sequence[str]) -> list[str]:
    """Remove what launchers put first on a command line: ``--local_rank=0``, or the words ``--local_rank 0``."""
    name, _, value = words[0].partition("=") if words else ("", "", "")
    if name not in ("--local_rank", "--local-rank"):
        return list(words)
    return list(words[1:] if value else words[2:])
