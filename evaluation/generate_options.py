"""Try a model by hand: what it writes behind a prompt, token by token.

    python -m evaluation generate smollm2 --chat --prompt "Name three prime numbers."
    python -m evaluation generate runs/demo --prompt_file long.txt --max_new_tokens 200
    cat long.txt | python -m evaluation generate MODEL
    python -m evaluation generate MODEL -i --chat      a conversation: Ctrl-D ends it, Ctrl-C ends a reply

The most likely token is written each time, whatever the model's own generation settings say, unless --temperature,
--top_p or --top_k asks for one to be drawn. Standard output gets the reply alone; lengths and speed go to standard
error. Nothing is stored.

Exit codes: 0 done; 2 something to mend.
"""

import argparse
import math
import os
from collections.abc import Sequence

from evaluation import options as shared
from tape_ds.arguments import Parser
from tape_ds.errors import Problem


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command's options."""
    parser = Parser(prog="python -m evaluation generate", description=__doc__)
    shared.add_model(parser)
    group = parser.add_argument_group("prompt")
    given = group.add_mutually_exclusive_group()
    given.add_argument("--prompt", help="text; default: standard input, where it is no terminal")
    given.add_argument("--prompt_file", help="a text file (of files and pipes the last line's end is left out)")
    group.add_argument("-i", "--interactive", action="store_true", help="go on: each line is the next prompt")
    group.add_argument("--chat", action="store_true", help="prompts are messages of the tokenizer's chat template")
    group = parser.add_argument_group("reply")
    group.add_argument("--max_new_tokens", type=int, default=256, help="of a reply (default: %(default)s)")
    group.add_argument("--temperature", type=float, help="draw: above 0 (1: as the model says); 0: do not draw")
    group.add_argument("--top_p", type=float, help="draw among the likeliest tokens that have this share together")
    group.add_argument("--top_k", type=int, help="draw among so many likeliest tokens")
    group.add_argument("--seed", type=int, default=0, help="of what is drawn (default: 0)")
    return parser.parse_args(argv)


def check(options: argparse.Namespace) -> list[Problem]:
    """What is wrong whatever the model."""
    bounds = {
        "max_new_tokens": (options.max_new_tokens < 1, "give 1 or more"),
        "temperature": (not 0 <= (options.temperature or 0) < math.inf, "give 0 or more"),
        "top_p": (options.top_p is not None and not 0 < options.top_p <= 1, "give more than 0, at most 1"),
        "top_k": (options.top_k is not None and options.top_k < 1, "give 1 or more"),
    }
    found = [
        Problem(f"--{name}", vars(options)[name], "out of range", remedy)
        for name, (wrong, remedy) in bounds.items()
        if wrong
    ]
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        found.append(Problem("processes", processes, "a person reads one reply", "start it as one process"))
    return found
