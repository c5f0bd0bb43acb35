"""Fine-tune a whole model on one data set of SCROLLS: long texts, questions, and answers as the only targets.

    deepspeed launchers/finetune_scrolls.py                                questions about Python's own sources
    deepspeed launchers/finetune_scrolls.py --recipe scrolls/qasper --model runs/c4_155m_tape/trained
    deepspeed launchers/finetune_scrolls.py --recipe scrolls/quality --data_dir /data/scrolls --dry_run

A recipe is one YAML file (see ``launchers/recipes/``); every field can be overridden as ``--field value``. The run is
that of ``finetune.py``, which takes these recipes as well. The loss on held-out answers is scored before and after;
answers are written and scored by ``python -m evaluation harness``. Exit codes: 0 done, or stopped on request with a
committed checkpoint; 2 something to mend in recipe, arguments or files, all of it in one message, nothing started; 3
stopped by a guard; 4 stuck; 1 anything else (docs/staying_alive.md).
"""

import sys
from typing import Any

from tape_ds.training import plan


def main() -> int:
    """Check the recipe, then build, train, score and report."""
    return plan.main("finetune_scrolls", assemble)


def assemble(recipe: Any) -> Any:
    """The run of a recipe."""
    from tape_ds.training.runs import assembly

    return assembly.assemble(recipe)


if __name__ == "__main__":
    sys.exit(main())
