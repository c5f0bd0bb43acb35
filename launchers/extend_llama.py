"""Extend the context of a pretrained model.

    deepspeed launchers/extend_llama.py                                    the demonstration
    deepspeed --hostfile hosts launchers/extend_llama.py --recipe llama2_7b_8k
    deepspeed launchers/extend_llama.py --recipe my.yaml --learning_rate 1e-5 --dry_run

A recipe is one YAML file (see ``launchers/recipes/``); every field can be overridden as ``--field value``. Exit codes:
0 done, or stopped on request with a committed checkpoint; 2 something to mend in recipe, arguments or files, all of it
in one message, nothing started; 3 stopped by a guard; 4 stuck; 1 anything else (docs/staying_alive.md).
"""

import sys
from typing import Any

from tape_ds.training import plan


def main() -> int:
    """Check the recipe, then build, train, score and report."""
    return plan.main("extend_llama", assemble)


def assemble(recipe: Any) -> Any:
    """The run of a recipe."""
    from tape_ds.training.runs import assembly

    return assembly.assemble(recipe)


if __name__ == "__main__":
    sys.exit(main())
