"""The work of ``python -m evaluation generate``, which :mod:`evaluation.generate_options` describes."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from evaluation import generate_options, models
from evaluation.conversation import Conversation, Drawing, Text
from evaluation.models import FoundModel
from tape_ds.errors import Problem, UserError, command, raise_if_any


@command
def main(argv: list[str] | None = None) -> int:
    """Check, load, write."""
    options = generate_options.parse(argv)
    found, tokenizer, prompt = prepare(options)
    if prompt is not None:
        note_length(found, Text(tokenizer, options.chat).with_turn(prompt), options.max_new_tokens)
    torch.manual_seed(options.seed)
    drawing = Drawing(options.temperature, options.top_p, options.top_k)
    talk = Conversation(found.load(), tokenizer, drawing=drawing, new_tokens=options.max_new_tokens, chat=options.chat)
    if prompt is not None:
        note(str(talk.say(prompt)))
    if options.interactive:
        converse(talk, found)
    return 0


def prepare(options: argparse.Namespace) -> tuple[FoundModel, PreTrainedTokenizerBase, str | None]:
    """The model, not loaded yet, its tokenizer, and the first prompt if there is one.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = generate_options.check(options)
    prompt = None
    try:
        prompt = read_prompt(options)
    except UserError as error:
        problems += error.problems
    try:
        found = models.find(options)
        tokenizer = found.tokenizer()
    except UserError as error:
        raise UserError([*problems, *error.problems]) from error
    no_template = options.chat and not getattr(tokenizer, "chat_template", None)
    if no_template:
        problems.append(Problem("--chat", True, "the tokenizer has no chat template", "leave it out"))
    elif prompt is not None and options.max_new_tokens > 0:
        tokens = len(Text(tokenizer, options.chat).with_turn(prompt))
        if tokens == 0:
            problems.append(Problem("prompt", prompt, "the tokenizer makes no token of it", "give another text"))
        problems += room(found, tokens, options.max_new_tokens)
    raise_if_any(problems)
    return found, tokenizer, prompt


def read_prompt(options: argparse.Namespace) -> str | None:
    """The first prompt; None where a conversation begins without one.

    Raises:
        UserError: there is none, it is empty, or its file cannot be read.
    """
    if options.prompt_file is not None:
        field, prompt = "--prompt_file", _read(options.prompt_file)
    elif options.prompt is not None:
        field, prompt = "--prompt", options.prompt
    elif options.interactive:
        return None
    elif sys.stdin.isatty():
        wrong = "there is none"
        raise UserError(Problem("prompt", None, wrong, "give --prompt or --prompt_file, pipe a text in, or add -i"))
    else:
        field, prompt = "standard input", _piped()
    if not prompt.strip():
        raise UserError(Problem(field, prompt, "no text", "give some text to go on from"))
    try:
        prompt.encode()
    except UnicodeEncodeError as error:  # Python keeps the bytes of an argument that is no UTF-8 as surrogates
        raise UserError(Problem(field, repr(prompt), f"is not UTF-8 ({error})", "give a text in UTF-8")) from error
    return prompt


def _read(path: str) -> str:
    try:
        return _without_last_newline(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            Problem("--prompt_file", path, error.strerror or str(error), "name a readable text file")
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(Problem("--prompt_file", path, f"is not UTF-8 ({error})", "name a text file")) from error


def _piped() -> str:
    try:
        return _without_last_newline(sys.stdin.read())
    except UnicodeDecodeError as error:
        raise UserError(Problem("standard input", "", f"is not UTF-8 ({error})", "pipe a text in")) from error


def _without_last_newline(text: str) -> str:
    """It ends the last line, as files and ``echo`` do; the model is to go on in that line."""
    return text.removesuffix("\n")


def room(found: FoundModel, tokens: int, new_tokens: int) -> list[Problem]:
    """Whether the model has no positions for a prompt of so many tokens and its reply."""
    if found.position_limit is None or tokens + new_tokens <= found.position_limit:
        return []
    wrong = f"with a reply of {new_tokens:,} it goes beyond the model's {found.position_limit:,} positions"
    return [Problem("prompt", f"{tokens:,} tokens", wrong, "shorten it, or lower --max_new_tokens")]


def note_length(found: FoundModel, ids: Sequence[int], new_tokens: int) -> None:
    """Say where a text goes beyond what the model was made for."""
    native = getattr(found.config.get_text_config(), "max_position_embeddings", None)
    if native is not None and len(ids) + new_tokens > native:
        note(f"{len(ids):,} tokens and a reply go beyond the model's native length of {native:,}")


def note(words: str) -> None:
    """A line for the person, beside the reply."""
    print(f"[{words}]", file=sys.stderr, flush=True)


def converse(talk: Conversation, found: FoundModel) -> None:
    """Replies to one line after another, until there are no more. A turn that has no room is left out."""
    note("Ctrl-D ends, Ctrl-C ends a reply")
    for words in _lines():
        ids = talk.text.with_turn(words)
        problems = room(found, len(ids), talk.new_tokens)
        if problems:
            note(f"not said: {problems[0]}")
            continue
        note_length(found, ids, talk.new_tokens)
        note(str(talk.say(words)))


def _lines() -> Iterator[str]:
    """What a person types, empty lines left out."""
    terminal = sys.stdin.isatty()
    if terminal:
        import readline  # noqa: F401  # lines can be edited and called back
    while True:
        try:
            line = input("> " if terminal else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            note("Ctrl-D ends")
            continue
        if line.strip():
            yield line


if __name__ == "__main__":
    sys.exit(main())
