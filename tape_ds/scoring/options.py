"""Options that several commands share, so that they are called the same everywhere."""

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tape_ds import numbers
from tape_ds.arguments import DTYPES, add_base_anyway
from tape_ds.errors import Problem, UserError, did_you_mean, is_main_process

if TYPE_CHECKING:
    from tape_ds.scoring.models import FoundModel


def hand_over(words: Sequence[str], commands: Mapping[str, str | None], package: str, usage: str) -> int:
    """Call the ``main`` of the command that the first word names, or print the usage.

    Args:
        words: of the command line.
        commands: the module that reads a command's line, where the command's own takes seconds to import.
        package: holds the commands.
        usage: what help prints.

    Raises:
        UserError: no such command.
    """
    if not words or words[0] in ("-h", "--help"):
        print(usage, end="")
        return 0
    if words[0] not in commands:
        raise UserError(Problem("command", words[0], "unknown", did_you_mean(words[0], commands)))
    if (reader := commands[words[0]]) is not None:  # --help, or a mistake, ends here
        importlib.import_module(f"{package}.{reader}").parse(words[1:])
    code: int = importlib.import_module(f"{package}.{words[0]}").main(words[1:])
    return code


def length(text: str) -> int:
    """Return a number of tokens, see :func:`tape_ds.numbers.tokens`.

    Raises:
        argparse.ArgumentTypeError: anything else, or less than 1.
    """
    found = numbers.tokens(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens: write 8192 or 8k")
    return found


def boolean(text: str) -> bool:
    """``true`` or ``false``.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: write true or false")
    return text.lower() == "true"


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, and how it is held."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "model",
        help="a run's folder, its folder 'trained' or a checkpoint, a TAPE model folder, any folder or hub id that "
        "transformers loads, a peft adapter, a .gguf file, or smollm2",
    )
    group.add_argument("--tokenizer", help="folder or hub id; default: the model's own")
    group.add_argument("--dtype", default="auto", choices=DTYPES, help="of the weights; auto: as they are stored")
    group.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ...; auto: a GPU of this process, or cpu")
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
        "--trust_remote_code", action="store_true", help="run code that the model's folder or hub repository carries"
    )
    add_base_anyway(group)


def add_output(parser: argparse.ArgumentParser, *, seed: bool = True) -> None:
    """Where results go, and the ``seed`` of what is drawn."""
    group = parser.add_argument_group("results")
    group.add_argument(
        "--output", help="folder; default: 'evaluation' in a run's folder, else runs/evaluation/NAME OF THE MODEL"
    )
    group.add_argument("--overwrite", action="store_true", help="replace another evaluation's result in that folder")
    if seed:
        group.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default: 0)")


def add_cache(group: Any) -> None:
    """Whether what was read is kept while text is written."""
    group.add_argument(
        "--use_cache",
        type=boolean,
        default=True,
        metavar="true|false",
        help="false: no key-value cache, the whole text is read for every new token (default: true)",
    )
    group.add_argument("--no_cache", dest="use_cache", action="store_false", help="the same as --use_cache false")


def note_beyond(lengths: Sequence[int], model: "FoundModel") -> None:
    """Say, once for a job and on standard error, how far the longest length goes beyond what the model was made for."""
    longest, native = max(lengths), model.known_length
    if native is not None and longest > native and is_main_process():
        times = f"{longest / native:.3g} times the native length of {model.name_or_path}, {native:,}"
        print(f"note: {longest:,} tokens are {times}", file=sys.stderr, flush=True)


def note_bos(model: "FoundModel") -> None:
    """Say the same way where a model's tokenizer begins no text with the BOS that the model knows."""
    from tape_ds.data.tokenizer import bos_note

    for note in bos_note(model.tokenizer(), model.config).values():
        if is_main_process():
            print(f"note: {note}", file=sys.stderr, flush=True)
