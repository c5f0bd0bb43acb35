"""SCROLLS: answers to questions about long texts, summaries of them, and the benchmark's official scores.

    python -m evaluation scrolls generate MODEL --datasets qasper quality      write answers, then score them
    python -m evaluation scrolls compare RESULTS ... --dataset quality         answers of several, side by side, scored

Each has --help. The data sets: qasper, contract_nli, narrative_qa, quality, qmsum, summ_screen_fd, gov_report; and
stdlib, questions about the running Python's own sources, which needs no download and is no part of SCROLLS.
"""

import sys

from evaluation.options import hand_over
from tape_ds.errors import command

COMMANDS = {"generate": "generate_options", "compare": None}


@command
def main(argv: list[str] | None = None) -> int:
    """Hand over to the command's own ``main``."""
    return hand_over(sys.argv[1:] if argv is None else argv, COMMANDS, __name__, __doc__ or "")
