"""Extend the context of a pretrained Llama-shaped model.

    deepspeed launchers/extend_llama.py                                    the demonstration
    deepspeed --hostfile hosts launchers/extend_llama.py --recipe llama2_7b_8k
    deepspeed launchers/extend_llama.py --recipe my.yaml --learning_rate 1e-5 --dry_run

A recipe is one YAML file (see ``launchers/recipes/``); every field can be overridden as ``--field value``. Exit codes:
0 done, or stopped on request with a committed checkpoint; 2 something to mend in recipe, arguments or files, all of it
in one message, nothing started; 3 stopped by a guard; 4 stuck; 1 anything else (docs/staying_alive.md).
"""

import sys
from typing import NoReturn

from tape_ds.cluster.rendezvous import report_failures
from tape_ds.errors import command
from tape_ds.recipe import extension, help, loading
from tape_ds.training import plan


@command
@report_failures
def main() -> int:
    """Check the recipe, then build, train, score and report."""
    if help.answered(sys.argv[1:], extension.ExtensionRecipe):
        return 0
    recipe = loading.load(sys.argv[1:], kind=extension.ExtensionRecipe)
    return 0 if plan.shown(recipe) else extend(recipe)


def extend(recipe: extension.ExtensionRecipe) -> NoReturn:
    """The run itself; the heavy libraries load here, after every check that needs none of them."""
    from tape_ds.training.environment import end_process, prepare_process

    prepare_process()
    from tape_ds.training.execution import launch
    from tape_ds.training.kinds.extension import assemble

    end_process(launch(recipe, assemble))


if __name__ == "__main__":
    sys.exit(main())
