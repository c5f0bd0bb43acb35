"""Train a model from scratch, with any positional encoding, on C4 or on text of your own.

    deepspeed launchers/pretrain_c4.py                                     a small model on the standard library's text
    deepspeed --hostfile hosts launchers/pretrain_c4.py --recipe c4_155m_tape
    deepspeed launchers/pretrain_c4.py --recipe tiny --position_encoding alibi --dry_run

A recipe is one YAML file (see ``launchers/recipes/``); every field can be overridden as ``--field value``. Without a
tokenizer, one is trained on the data first. Afterwards perplexity is scored at 1, 2, 4 and 8 times the trained length.
Exit codes: 0 done, or stopped on request with a committed checkpoint; 2 something to mend in recipe, arguments or
files, all of it in one message, nothing started; 3 stopped by a guard; 4 stuck; 1 anything else (see
docs/staying_alive.md).
"""

import sys
from typing import Any

from tape_ds.training import plan


def main() -> int:
    """Check the recipe, then build, train, score and report."""
    return plan.main("pretrain_c4", assemble)


def assemble(recipe: Any) -> Any:
    """The run of a recipe."""
    from tape_ds.training.runs import assembly

    return assembly.assemble(recipe)


if __name__ == "__main__":
    sys.exit(main())
