"""The work of ``python -m evaluation generate``, which :mod:`evaluation.generate_options` describes."""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextStreamer

from evaluation import generate_options, models
from evaluation.models import FoundModel
from tape_ds.data.tokenizer import without_end
from tape_ds.errors import Problem, UserError, collecting, command, raise_if_any
from tape_ds.scoring.generation import continue_prompts, ends_of


@command
def main(argv: list[str] | None = None) -> int:
    """Check, load, write."""
    options = generate_options.parse(argv)
    found, talk, prompt = prepare(options)
    torch.manual_seed(options.seed)
    if prompt is not None:
        note_length(found, len(talk.ids_with(prompt)) + options.max_new_tokens)
    model = found.load()
    if prompt is not None:
        talk.say(model, prompt, options)
    if options.interactive:
        converse(model, talk, found, options)
    return 0


@dataclass
class Talk:
    """A text that a person and a model write in turns, all of it read again for each reply.

    Plain text goes on where the model stopped; with a chat template, turns are messages.
    """

    tokenizer: PreTrainedTokenizerBase
    chat: bool
    messages: list[dict[str, str]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def ids_with(self, words: str) -> list[int]:
        """The ids of everything so far and a person's next words; nothing is kept."""
        if self.chat:
            turns = [*self.messages, {"role": "user", "content": words}]
            made: Any = self.tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=True, return_dict=True
            )
            return list(made["input_ids"])
        if not self.ids:
            return without_end(self.tokenizer(words, verbose=False)["input_ids"], self.tokenizer)
        return self.ids + self.tokenizer(f"\n{words}", add_special_tokens=False, verbose=False)["input_ids"]

    def say(self, model: PreTrainedModel, words: str, options: argparse.Namespace) -> str:
        """The model's reply to ``words``, streamed to standard output; Ctrl-C ends it."""
        ids, stream = self.ids_with(words), Stream(self.tokenizer)
        with models.used_at(model, len(ids) + options.max_new_tokens):
            try:
                (new,) = continue_prompts(
                    model,
                    [ids],
                    new_tokens=options.max_new_tokens,
                    ends=ends_of(model, self.tokenizer),
                    settings=drawing(options),
                    streamer=stream,
                )
            except KeyboardInterrupt:
                stream.end()
                new = stream.ids
        reply: str = self.tokenizer.decode(new, skip_special_tokens=True)
        self.messages += [{"role": "user", "content": words}, {"role": "assistant", "content": reply}]
        self.ids = ids + new
        note(f"prompt {len(ids):,} tokens, {stream}")
        return reply


class Stream:
    """transformers' text streamer, without the prompt, and with the tokens and their times."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.shown = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.end = self.shown.end
        self.ids: list[int] = []
        self.times: list[float] = []
        """When the prompt was given, and when each token came."""

    def put(self, value: Tensor) -> None:
        """Called with the prompt, then with each token."""
        if self.times:
            self.ids += value.flatten().tolist()
        self.times.append(time.monotonic())
        self.shown.put(value)

    def __str__(self) -> str:
        if len(self.times) < 2:
            return "no reply"
        reading, writing = self.times[1] - self.times[0], self.times[-1] - self.times[1]
        rate = f", {(len(self.ids) - 1) / writing:.1f} tokens/s" if writing > 0 else ""
        return f"read in {reading:.2f} s; reply {len(self.ids):,} tokens{rate}"


def drawing(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a ``GenerationConfig`` that decide how a token is chosen: every one, so that no default counts.

    Without anything given it is the most likely one.
    """
    given = (options.temperature, options.top_p, options.top_k)
    if options.temperature == 0 or given == (None, None, None):
        return {"do_sample": False}
    temperature, top_p, top_k = given
    unset = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    return {"do_sample": True} | unset | {name: value for name, value in asked.items() if value is not None}


def prepare(options: argparse.Namespace) -> tuple[FoundModel, Talk, str | None]:
    """The model, not loaded yet, a text without a word, and the first prompt if there is one.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = generate_options.check(options)
    prompt = None
    with collecting(problems):
        prompt = read_prompt(options)
    found = models.find(options, problems)
    talk = Talk(found.tokenizer(), options.chat)
    if options.chat and not getattr(talk.tokenizer, "chat_template", None):
        problems.append(Problem("--chat", True, "the tokenizer has no chat template", "leave it out"))
    elif prompt is not None and options.max_new_tokens > 0:
        tokens = len(talk.ids_with(prompt))
        if tokens == 0:
            problems.append(Problem("prompt", prompt, "the tokenizer makes no token of it", "give another text"))
        problems += room(found, tokens, options.max_new_tokens)
    raise_if_any(problems)
    return found, talk, prompt


def read_prompt(options: argparse.Namespace) -> str | None:
    """The first prompt, of a file or a pipe without the end of its last line; None where a conversation begins
    without one.

    Raises:
        UserError: there is none, it is empty, or it cannot be read.
    """
    field_, prompt = "--prompt", options.prompt
    try:
        if options.prompt_file is not None:
            field_ = "--prompt_file"
            prompt = Path(options.prompt_file).read_text(encoding="utf-8").removesuffix("\n")
        elif prompt is None and options.interactive:
            return None
        elif prompt is None and sys.stdin.isatty():
            remedy = "give --prompt or --prompt_file, pipe a text in, or add -i"
            raise UserError(Problem("prompt", None, "there is none", remedy))
        elif prompt is None:
            field_ = "standard input"
            prompt = sys.stdin.read().removesuffix("\n")
        prompt.encode()  # Python keeps the bytes of an argument that is no UTF-8 as surrogates
    except OSError as error:
        wrong = error.strerror or str(error)
        raise UserError(Problem(field_, options.prompt_file, wrong, "name a readable text file")) from error
    except UnicodeError as error:
        raise UserError(Problem(field_, repr(prompt), f"is not UTF-8 ({error})", "give a text in UTF-8")) from error
    if not prompt.strip():
        raise UserError(Problem(field_, prompt, "no text", "give some text to go on from"))
    return str(prompt)


def room(found: FoundModel, tokens: int, new_tokens: int) -> list[Problem]:
    """Whether the model has no positions for a prompt of so many tokens and its reply."""
    if found.position_limit is None or tokens + new_tokens <= found.position_limit:
        return []
    wrong = f"with a reply of {new_tokens:,} it goes beyond the model's {found.position_limit:,} positions"
    return [Problem("prompt", f"{tokens:,} tokens", wrong, "shorten it, or lower --max_new_tokens")]


def note_length(found: FoundModel, tokens: int) -> None:
    """Say where a text with its reply goes beyond what the model was made for."""
    native = getattr(found.config.get_text_config(), "max_position_embeddings", None)
    if native is not None and tokens > native:
        note(f"{tokens:,} tokens, reply included, go beyond the model's native length of {native:,}")


def note(words: str) -> None:
    """A line for the person, beside the reply."""
    print(f"[{words}]", file=sys.stderr, flush=True)


def converse(model: PreTrainedModel, talk: Talk, found: FoundModel, options: argparse.Namespace) -> None:
    """Replies to one line after another, until there are no more. A turn that has no room is left out."""
    note("Ctrl-D ends, Ctrl-C ends a reply")
    for words in _lines():
        tokens = len(talk.ids_with(words))
        if problems := room(found, tokens, options.max_new_tokens):
            note(f"not said: {problems[0]}")
            continue
        note_length(found, tokens + options.max_new_tokens)
        talk.say(model, words, options)


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
