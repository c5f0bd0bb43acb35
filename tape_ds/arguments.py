"""The parser of every command, and the options that several commands share."""

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from tape_ds import numbers
from tape_ds.errors import Problem, UserError, did_you_mean, report
from tape_ds.exit_codes import ExitCode

DTYPES = ("auto", "float32", "bfloat16", "float16")
"""Values of ``--dtype``."""


class Parser(argparse.ArgumentParser):
    """argparse's parser with one-line errors, the description as it is written, and no abbreviated options.

    :meth:`parse_args` reports an unknown option before a missing one: a mistyped option is both. Options may be typed
    with hyphens in place of underscores.
    """

    def __init__(self, **options: Any):
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        # words after "--" are no options
        ends = [*words, "--"].index("--")
        words[:ends] = map(self._known_spelling, words[:ends])
        for number, word in enumerate(words[:ends]):
            name = word.partition("=")[0]
            if not name.startswith("--") or " " in name or name in self._option_string_actions:
                continue
            shown = word
            # with its value, as it was typed
            for value in words[number + 1 : number + 2]:
                if "=" not in word and not value.startswith("-"):
                    shown = f"{word} {value}"
            known = [option for option in self._option_string_actions if option[:2] == "--"]
            self.error(f"{shown}: unknown option; {did_you_mean(name, known)}")
        return super().parse_args(words, namespace)

    @contextlib.contextmanager
    def as_typed(self) -> Iterator[None]:
        """Have problems that the block raises name options as they are typed: ``--output``."""
        try:
            yield
        except UserError as error:
            for number, problem in enumerate(error.problems):
                option = f"--{problem.field}"
                if option in self._option_string_actions:
                    error.problems[number] = replace(problem, field=option)
            raise

    def _known_spelling(self, word: str) -> str:
        """Return ``--max_new_tokens=8`` for ``--max-new-tokens=8`` where only that is an option."""
        name, equals, value = word.partition("=")
        underscored = "--" + name.removeprefix("--").replace("-", "_")
        if name in self._option_string_actions or underscored not in self._option_string_actions:
            return word
        return underscored + equals + value

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                action, f"{value!r} is unknown; {did_you_mean(value, action.choices)}"
            )

    def error(self, message: str) -> NoReturn:
        """Print one line from rank 0, and exit as for any mistake of a user."""
        report(message)
        raise SystemExit(ExitCode.USER_ERROR)


def add_base_anyway(parser: Any) -> None:
    parser.add_argument(
        "--base_anyway",
        action="store_true",
        help="load trained weights onto the base that is found now, although it is not the one they were trained on",
    )


def add_new_folder(parser: Parser, source: str, *, optional: bool = False) -> None:
    """Add what commands take that write a model's folder: the ``source``, the folder, dtype and base.

    ``optional``: whether the command may write something else instead of the folder.
    """
    parser.add_argument(source)
    parser.add_argument("out", nargs="?" if optional else None, help="a new folder")
    help = "of the weights; auto: as the base model's are stored"
    parser.add_argument("--dtype", default="auto", choices=DTYPES, help=help)
    help = "also compare the merged model's logits with the adapter's, block by block; every layer is compared anyway"
    parser.add_argument("--check_logits", action="store_true", help=help)
    add_base_anyway(parser)


def values_of(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    return {name: vars(options)[name] for name in names}


def below_one(options: argparse.Namespace, *names: str) -> list[Problem]:
    """Return a problem for each of these options that is given and below 1."""
    problems = []
    for name, value in values_of(options, names).items():
        if value is not None and value < 1:
            problems.append(Problem(f"--{name}", value, "is below 1", "give 1 or more"))
    return problems


def length(text: str) -> int:
    """Return a number of tokens, see :func:`tape_ds.numbers.tokens`.

    Raises:
        argparse.ArgumentTypeError: anything else, or less than 1.
    """
    tokens = numbers.tokens(text)
    if tokens is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens: write 8192 or 8k")
    return tokens


def add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "model",
        help="a run's folder, its folder 'trained' or a checkpoint, a TAPE model folder, any folder or hub id that "
        "transformers loads, a peft adapter, a .gguf file, or smollm2",
    )
    group.add_argument("--tokenizer", help="folder or hub id; default: the model's own")
    group.add_argument(
        "--dtype", default="auto", choices=DTYPES, help="of the weights; auto: as they are stored"
    )
    group.add_argument(
        "--device",
        default="auto",
        help="cpu, cuda, cuda:1, ...; auto: a GPU of this process, or cpu",
    )
    group.add_argument(
        "--position_updates",
        default="on",
        choices=("on", "off"),
        help="off: TAPE's layers leave the position state as it started, which shows what trained updates are worth",
    )
    group.add_argument(
        "--rope_scaling",
        default="own",
        choices=("own", "yarn"),
        help="yarn: YaRN's, to the length of each text from the one that the model was trained on",
    )
    group.add_argument(
        "--trust_remote_code",
        action="store_true",
        help="run code that the model's folder or hub repository carries",
    )
    add_base_anyway(group)


def add_output(parser: argparse.ArgumentParser, *, seed: bool = True) -> None:
    """Add the folder of results, and the ``seed``."""
    group = parser.add_argument_group("results")
    group.add_argument(
        "--output",
        help="folder; default: 'evaluation' in a run's folder, else runs/evaluation/NAME OF THE MODEL",
    )
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="replace another evaluation's result in that folder",
    )
    if seed:
        group.add_argument(
            "--seed", type=int, default=0, help="of everything that is drawn (default: 0)"
        )


def named(typed: str) -> tuple[str | None, str]:
    """Split ``NAME=MODEL``; an existing path that contains ``=`` has no name."""
    name, equals, name_or_path = typed.partition("=")
    if equals and name and not Path(typed).exists():
        return (name, name_or_path)
    return (None, typed)


def without_local_rank(words: Sequence[str]) -> list[str]:
    """Remove what launchers prepend to a command line: ``--local_rank=0``, or the words ``--local_rank 0``."""
    name, _, value = words[0].partition("=") if words else ("", "", "")
    if name not in ("--local_rank", "--local-rank"):
        return list(words)
    return list(words[1:] if value else words[2:])
