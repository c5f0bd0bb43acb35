"""What a model is worth on long text.

    python -m evaluation generate   MODEL --prompt "def main():"      try a model by hand
    python -m evaluation perplexity MODEL --data stdlib --lengths 2k 8k 16k
    python -m evaluation passkey    MODEL --lengths 4k 8k 16k         a heat map of depth and length
    python -m evaluation arithmetic MODEL --digits 12                 a heat map of both operands' lengths
    python -m evaluation harness    MODEL --tasks tape_table9         lm-eval's tasks: MMLU, ARC, RULER, SCROLLS, ...
    python -m evaluation report     RUNS ... --output PAGE            one page that compares them

Each has ``--help``. MODEL is a run's folder, a model folder, an adapter, a hub id, a .gguf file, or smollm2. On several
processes, each with the whole model: ``torchrun --nproc_per_node 2 -m evaluation ...``, or
``deepspeed --num_accelerators 2 --module evaluation ...``. An evaluation that was interrupted goes on when the same
command is started again.

Exit codes: 0 done; 2 something to mend, all of it in one message, nothing was started.
"""

import os
import sys

from tape_ds.arguments import without_local_rank
from tape_ds.errors import command
from tape_ds.scoring.options import hand_over

COMMANDS = {
    "generate": None,
    "perplexity": "perplexity_options",
    "passkey": "passkey_options",
    "arithmetic": "arithmetic_options",
    "harness": None,
    "report": None,
}
"""The module that reads a command's line, where the command's own takes seconds to import."""


@command
def main(argv: list[str] | None = None) -> int:
    """Hand over to the command's own ``main``."""
    words = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return hand_over(without_local_rank(words), COMMANDS, "evaluation", __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
