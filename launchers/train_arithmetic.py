"""Train a model from nothing on a generated task: sums of every length alike, or answers that need a position.

    deepspeed launchers/train_arithmetic.py                                  sums of up to two digits, in a minute
    deepspeed launchers/train_arithmetic.py --recipe arithmetic/addition_6 --position_encoding rope
    deepspeed --hostfile launchers/hostfile launchers/train_arithmetic.py --recipe arithmetic/addition_20 --dry_run

A recipe is one YAML file (see ``launchers/recipes/``); every field can be overridden as ``--field value``. Afterwards
held-out problems of the trained lengths are answered; the grid of longer ones is ``python -m evaluation arithmetic``.
Exit codes: 0 done, or stopped on request with a committed checkpoint; 2 something to mend in recipe or arguments, all
of it in one message, nothing started; 3 stopped by a guard; 4 stuck; 1 anything else (docs/staying_alive.md).
"""

import sys
from typing import Any

from tape_ds.training import plan


def main() -> int:
    """Check the recipe, then build, train, score and report."""
    return plan.main("train_arithmetic", assemble)


def assemble(recipe: Any) -> Any:
    """The run of a recipe."""
    from tape_ds.training.runs import assembly

    return assembly.assemble(recipe)


if __name__ == "__main__":
    sys.exit(main())
