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
from typing import NoReturn

from tape_ds.cluster.rendezvous import report_failures
from tape_ds.errors import command
from tape_ds.recipe import help, loading, pretraining
from tape_ds.training import plan


@command
@report_failures
def main() -> int:
    """Check the recipe, then build, train, score and report."""
    if help.answered(sys.argv[1:], pretraining.PretrainingRecipe):
        return 0
    recipe = loading.load(sys.argv[1:], kind=pretraining.PretrainingRecipe)
    return 0 if plan.shown(recipe) else pretrain(recipe)


def pretrain(recipe: pretraining.PretrainingRecipe) -> NoReturn:
    """The run itself; the heavy libraries load here, after every check that needs none of them."""
    from tape_ds.training.environment import end_process, prepare_process

    prepare_process()
    from tape_ds.training.execution import launch
    from tape_ds.training.kinds.pretraining import assemble

    end_process(launch(recipe, assemble))


if __name__ == "__main__":
    sys.exit(main())
