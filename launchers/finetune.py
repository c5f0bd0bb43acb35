"""Fine-tune a whole model on conversations, rendered by its own chat template, with the assistant's tokens as targets.

    deepspeed launchers/finetune.py                                        made conversations, in minutes
    deepspeed launchers/finetune.py --recipe my.yaml --train_data jsonl:chat.jsonl --eval_share 0.01 --dry_run
    deepspeed launchers/finetune.py --recipe scrolls/qasper --model runs/c4_155m_tape/trained

A recipe is one YAML file (see ``launchers/recipes/``); every field can be overridden as ``--field value``. Recipes of
SCROLLS (``launcher: finetune_scrolls``) are taken as well; ``finetune_scrolls.py --help`` has their fields. The loss on
held-out answers is scored before and after. Exit codes: 0 done, or stopped on request with a committed checkpoint; 2
something to mend in recipe, arguments or files, all of it in one message, nothing started; 3 stopped by a guard; 4
stuck; 1 anything else (docs/staying_alive.md).
"""

import sys
from typing import Any

from tape_ds.training import plan


def main() -> int:
    """Check the recipe, then build, train, score and report."""
    return plan.main("finetune", assemble)


def assemble(recipe: Any) -> Any:
    """The run of a recipe."""
    from tape_ds.training.runs import assembly

    return assembly.assemble(recipe)


if __name__ == "__main__":
    sys.exit(main())
