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
from typing import NoReturn

from tape_ds.cluster.rendezvous import report_failures
from tape_ds.errors import command
from tape_ds.recipe import command_line, finetuning, help, kinds, loading
from tape_ds.recipe.recipe import Recipe
from tape_ds.training import plan


@command
@report_failures
def main() -> int:
    """Check the recipe, then build, train, score and report."""
    argv = sys.argv[1:]
    names = command_line.read(argv, []).get("recipe") or [finetuning.ChatRecipe.DEFAULT]
    kind = kinds.taken(finetuning.ChatRecipe.LAUNCHER, names[-1])
    if help.answered(argv, kind):
        return 0
    recipe = loading.load(argv, kind=kind)
    return 0 if plan.shown(recipe) else finetune(recipe)


def finetune(recipe: Recipe) -> NoReturn:
    """The run itself; the heavy libraries load here, after every check that needs none of them."""
    from tape_ds.training.environment import end_process, prepare_process

    prepare_process()
    from tape_ds.training.execution import launch
    from tape_ds.training.kinds.finetuning import assemble

    end_process(launch(recipe, assemble))


if __name__ == "__main__":
    sys.exit(main())
