"""Try a model by hand: it continues a prompt, token by token.

    tape-ds evaluate generate smollm2 --chat --prompt "Name three prime numbers."
    tape-ds evaluate generate runs/demo --max_new_tokens 200 < long.txt

Decoding is greedy, whatever the model's generation settings. Standard output gets the reply alone; lengths and time go
to standard error. Nothing is stored. For conversations and sampling: ``tape-ds serve MODEL``.

Exit codes: 0 done; 2 a mistake.
"""

import os
import sys
import time
from typing import TYPE_CHECKING

from tape_ds.arguments import Parser, add_model, below_one
from tape_ds.errors import Problem, UserError, collecting, command, raise_if_any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@command
def main(argv: list[str] | None = None) -> int:
    """Check, load, write."""
    parser = Parser(prog="tape-ds evaluate generate", description=__doc__)
    add_model(parser)
    group = parser.add_argument_group("prompt and reply")
    group.add_argument(
        "--prompt", help="text; default: standard input, without the end of its last line"
    )
    group.add_argument(
        "--chat",
        action="store_true",
        help="the prompt is a message of the tokenizer's chat template",
    )
    group.add_argument(
        "--max_new_tokens", type=int, default=256, help="of a reply (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    problems = below_one(options, "max_new_tokens")
    # each rank would write its reply between the tokens of the others
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        problems.append(
            Problem("processes", processes, "a person reads one reply", "start it as one process")
        )
    prompt = ""
    with collecting(problems):
        prompt = read_prompt(options.prompt)

    from transformers import TextStreamer

    from tape_ds.scoring import models
    from tape_ds.scoring.generation import continue_prompts, ends_of

    found_model = models.find(options, problems)
    raise_if_any(problems)
    tokenizer = found_model.tokenizer()
    ids = ids_of(prompt, tokenizer, options.chat)
    if not ids:
        problems.append(
            Problem("--prompt", prompt, "the tokenizer makes no token of it", "give another text")
        )
    # a token beyond the embeddings ends a process on a GPU without a message
    problems += models.check_tokens("--prompt", ids, found_model)
    length = len(ids) + options.max_new_tokens
    raise_if_any(
        problems + models.check_lengths("tokens of prompt and reply", [length], found_model)
    )
    models.print_notes(found_model, [length], bos=False)

    model = found_model.load()
    started = time.monotonic()
    with models.used_at(model, length):
        (new,) = continue_prompts(
            model,
            [ids],
            new_tokens=options.max_new_tokens,
            ends=ends_of(model, tokenizer),
            streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        )
    taken = time.monotonic() - started
    print(
        f"[prompt {len(ids):,} tokens, reply {len(new):,} tokens, {taken:.2f} s]",
        file=sys.stderr,
        flush=True,
    )
    return 0


def read_prompt(prompt: str | None) -> str:
    """Return the prompt; from standard input, without the end of its last line."""
    try:
        if prompt is None and sys.stdin.isatty():
            raise UserError(
                Problem("--prompt", None, "there is none", "give one, or pipe a text in")
            )
        prompt = sys.stdin.read().removesuffix("\n") if prompt is None else prompt
        # Python keeps the bytes of an argument that is no UTF-8 as surrogates
        prompt.encode()
    except UnicodeError as error:
        raise UserError(
            Problem("--prompt", repr(prompt), f"is not UTF-8 ({error})", "give a text in UTF-8")
        ) from error
    if not prompt.strip():
        raise UserError(Problem("--prompt", prompt, "no text", "give some text to continue"))
    return str(prompt)


def ids_of(prompt: str, tokenizer: "PreTrainedTokenizerBase", chat: bool) -> list[int]:
    """Return the prompt's token ids; with ``chat`` those of a message."""
    from tape_ds.data.chat import template
    from tape_ds.data.prompting import prompt_ids

    if chat:
        return template.prompt_ids(prompt, tokenizer)
    return prompt_ids(prompt, tokenizer)
