"""Score a model on long text.

    tape-ds evaluate generate   MODEL --prompt "def main():"      try a model by hand
    tape-ds evaluate perplexity MODEL --data stdlib --lengths 2k 8k 16k
    tape-ds evaluate passkey    MODEL --lengths 4k 8k 16k         a heat map of depth and length
    tape-ds evaluate ruler      MODEL --lengths 4k 8k 16k         RULER's tasks, and the length that a model uses
    tape-ds evaluate generated  MODEL --digits 12                a heat map of both operands' lengths
    tape-ds evaluate harness    MODEL --tasks tape_table9         lm-eval's tasks: MMLU, ARC, SCROLLS, ...
    tape-ds evaluate report     RUNS ... --output PAGE            one page that compares them

Each has --help. MODEL is a run's folder, a model folder, an adapter, a hub id, a .gguf file, or smollm2. With
--gpus N, or started by torchrun or deepspeed, N processes share the work, each with the whole model. An interrupted
evaluation resumes when the same command is started again. In a checkout, python -m evaluation is the same command.

Exit codes: 0 done; 2 a mistake, all of them in one message, nothing was started.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from tape_ds.arguments import without_local_rank
from tape_ds.errors import Problem, UserError, command, did_you_mean

COMMANDS = ("generate", "perplexity", "passkey", "ruler", "generated", "harness", "report")


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Call the ``main`` of the command that the first word names, or print the usage."""
    words = without_local_rank(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not words or words[0] in ("-h", "--help"):
        print(__doc__, end="")
        return 0
    if words[0] not in COMMANDS:
        raise UserError(Problem("command", words[0], "unknown", did_you_mean(words[0], COMMANDS)))
    code: int = import_module(f"{__name__}.{words[0]}").main(words[1:])
    return code
