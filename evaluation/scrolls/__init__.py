"""SCROLLS: answers to questions about long texts, summaries of them, and the benchmark's official scores.

    python -m evaluation scrolls generate MODEL --datasets qasper quality      write answers, then score them
    python -m evaluation scrolls score PREDICTIONS.json --dataset qasper       score a file of answers
    python -m evaluation scrolls compare RESULTS ... --dataset quality         answers of several, side by side

Each has --help. The data sets: qasper, contract_nli, narrative_qa, quality, qmsum, summ_screen_fd, gov_report; and
stdlib, questions about the running Python's own sources, which needs no download and is no part of SCROLLS.
"""

import importlib
import sys

from tape_ds.errors import Problem, UserError, command, did_you_mean

COMMANDS = {"generate": "generate_options", "score": None, "compare": None}
"""The module that reads a command's line, where the command's own takes seconds to import."""


@command
def main(argv: list[str] | None = None) -> int:
    """Hand over to the command's own ``main``."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help"):
        print(__doc__, end="")
        return 0
    if words[0] not in COMMANDS:
        raise UserError(Problem("scrolls", words[0], "unknown", did_you_mean(words[0], COMMANDS)))
    if (reader := COMMANDS[words[0]]) is not None:  # --help, or a mistake, ends here
        importlib.import_module(f"evaluation.scrolls.{reader}").parse(words[1:])
    code: int = importlib.import_module(f"evaluation.scrolls.{words[0]}").main(words[1:])
    return code
