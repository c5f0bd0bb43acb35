"""Train a model from nothing to calculate: sums and their like, of every length alike, drawn while it is trained.

    deepspeed launchers/train_arithmetic.py                                  sums of up to two digits, in a minute
    deepspeed launchers/train_arithmetic.py --recipe arithmetic/addition_6 --position_encoding rope
    deepspeed --hostfile launchers/hostfile launchers/train_arithmetic.py --recipe arithmetic/addition_20 --dry_run

A recipe is one YAML file (see ``launchers/recipes/``); every field can be overridden as ``--field value``. Afterwards
held-out problems of the trained lengths are answered; the grid of longer ones is ``python -m evaluation arithmetic``.
Exit codes: 0 done, or stopped on request with a committed checkpoint; 2 something to mend in recipe or arguments, all
of it in one message, nothing started; 3 stopped by a guard; 4 stuck; 1 anything else (docs/staying_alive.md).
"""

import sys
from typing import NoReturn

from tape_ds.cluster.rendezvous import report_failures
from tape_ds.errors import command
from tape_ds.recipe import arithmetic, help, loading
from tape_ds.training import plan


@command
@report_failures
def main() -> int:
    """Check the recipe, then build, train, score and report."""
    if help.answered(sys.argv[1:], arithmetic.ArithmeticRecipe):
        return 0
    recipe = loading.load(sys.argv[1:], kind=arithmetic.ArithmeticRecipe)
    return 0 if plan.shown(recipe) else train(recipe)


def train(recipe: arithmetic.ArithmeticRecipe) -> NoReturn:
    """The run itself; the heavy libraries load here, after every check that needs none of them."""
    from tape_ds.training.environment import end_process, prepare_process

    prepare_process()
    from tape_ds.training.execution import launch
    from tape_ds.training.kinds.arithmetic import assemble

    end_process(launch(recipe, assemble))


if __name__ == "__main__":
    sys.exit(main())
