"""Fine-tune a whole model on one data set of SCROLLS: long texts, questions, and answers as the only targets.

    deepspeed launchers/finetune_scrolls.py                                questions about Python's own sources
    deepspeed launchers/finetune_scrolls.py --recipe scrolls/qasper --model runs/c4_155m_tape/trained
    deepspeed launchers/finetune_scrolls.py --recipe scrolls/quality --data_dir /data/scrolls --dry_run

A recipe is one YAML file (see ``launchers/recipes/``); every field can be overridden as ``--field value``. The run is
that of ``finetune.py``, which takes these recipes as well. The loss on held-out answers is scored before and after;
answers are written and scored by ``python -m evaluation scrolls``. Exit codes: 0 done, or stopped on request with a
committed checkpoint; 2 something to mend in recipe, arguments or files, all of it in one message, nothing started; 3
stopped by a guard; 4 stuck; 1 anything else (docs/staying_alive.md).
"""

import sys
from typing import NoReturn

from tape_ds.cluster.rendezvous import report_failures
from tape_ds.errors import command
from tape_ds.recipe import finetuning, help, loading
from tape_ds.training import plan


@command
@report_failures
def main() -> int:
    """Check the recipe, then build, train, score and report."""
    if help.answered(sys.argv[1:], finetuning.ScrollsRecipe):
        return 0
    recipe = loading.load(sys.argv[1:], kind=finetuning.ScrollsRecipe)
    return 0 if plan.shown(recipe) else finetune(recipe)


def finetune(recipe: finetuning.ScrollsRecipe) -> NoReturn:
    """The run itself; the heavy libraries load here, after every check that needs none of them."""
    from tape_ds.training.environment import end_process, prepare_process

    prepare_process()
    from tape_ds.training.execution import launch
    from tape_ds.training.kinds.finetuning import assemble

    end_process(launch(recipe, assemble))


if __name__ == "__main__":
    sys.exit(main())
