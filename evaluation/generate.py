"""Try a model by hand: what it writes behind a prompt, token by token.

    python -m evaluation generate smollm2 --chat --prompt "Name three prime numbers."
    python -m evaluation generate runs/demo --max_new_tokens 200 < long.txt

The most likely token is written each time, whatever the model's own generation settings say. Standard output gets the
reply alone; lengths and time go to standard error. Nothing is stored. For conversations, and text that is drawn:
``tape-ds serve MODEL``.

Exit codes: 0 done; 2 something to mend.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tape_ds.arguments import Parser, below_one
from tape_ds.errors import Problem, UserError, collecting, command, raise_if_any
from tape_ds.scoring import options as shared

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tape_ds.scoring.models import FoundModel


@command
def main(argv: list[str] | None = None) -> int:
    """Check, load, write."""
    options = parse(argv)
    found, ids = prepare(options)
    from transformers import TextStreamer

    from tape_ds.scoring.generation import continue_prompts, ends_of
    from tape_ds.scoring.models import used_at

    tokenizer, model = found.tokenizer(), found.load()
    started = time.monotonic()
    with used_at(model, len(ids) + options.max_new_tokens):
        (new,) = continue_prompts(
            model,
            [ids],
            new_tokens=options.max_new_tokens,
            ends=ends_of(model, tokenizer),
            streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        )
    taken = time.monotonic() - started
    print(f"[prompt {len(ids):,} tokens, reply {len(new):,} tokens, {taken:.2f} s]", file=sys.stderr, flush=True)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's options."""
    parser = Parser(prog="python -m evaluation generate", description=__doc__)
    shared.add_model(parser)
    group = parser.add_argument_group("prompt and reply")
    group.add_argument("--prompt", help="text; default: standard input, without the end of its last line")
    group.add_argument("--chat", action="store_true", help="the prompt is a message of the tokenizer's chat template")
    group.add_argument("--max_new_tokens", type=int, default=256, help="of a reply (default: %(default)s)")
    return parser.parse_args(argv)


def prepare(options: argparse.Namespace) -> tuple["FoundModel", list[int]]:
    """Return the model, not loaded yet, and the prompt's ids.

    Raises:
        UserError: everything wrong with the command line.
    """
    from tape_ds.scoring import models

    problems = check(options)
    prompt = ""
    with collecting(problems):
        prompt = read_prompt(options)
    found = models.find(options, problems)
    raise_if_any(problems)
    ids = ids_of(prompt, found.tokenizer(), options.chat)
    if not ids:
        problems.append(Problem("--prompt", prompt, "the tokenizer makes no token of it", "give another text"))
    length = len(ids) + options.max_new_tokens
    raise_if_any(problems + models.check_lengths("tokens of prompt and reply", [length], found))
    shared.note_beyond([length], found)
    return found, ids


def check(options: argparse.Namespace) -> list[Problem]:
    """Return what is wrong whatever the model."""
    problems = below_one(options, "max_new_tokens")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        problems.append(Problem("processes", processes, "a person reads one reply", "start it as one process"))
    return problems


def read_prompt(options: argparse.Namespace) -> str:
    """Return the prompt; of standard input without the end of its last line.

    Raises:
        UserError: there is none, it is empty, or it is no text.
    """
    prompt = options.prompt
    try:
        if prompt is None and sys.stdin.isatty():
            raise UserError(Problem("--prompt", None, "there is none", "give one, or pipe a text in"))
        prompt = sys.stdin.read().removesuffix("\n") if prompt is None else prompt
        prompt.encode()  # Python keeps the bytes of an argument that is no UTF-8 as surrogates
    except UnicodeError as error:
        raise UserError(Problem("--prompt", repr(prompt), f"is not UTF-8 ({error})", "give a text in UTF-8")) from error
    if not prompt.strip():
        raise UserError(Problem("--prompt", prompt, "no text", "give some text to go on from"))
    return str(prompt)


def ids_of(prompt: str, tokenizer: "PreTrainedTokenizerBase", chat: bool) -> list[int]:
    """Return what the model reads; with ``chat`` the prompt as a message.

    Raises:
        UserError: the tokenizer has no chat template.
    """
    from tape_ds.data.prompting import prompt_ids

    if not chat:
        return prompt_ids(prompt, tokenizer)
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(Problem("--chat", True, "the tokenizer has no chat template", "leave it out"))
    turns = [{"role": "user", "content": prompt}]
    made: Any = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=True)
    return list(made["input_ids"])


if __name__ == "__main__":
    sys.exit(main())
