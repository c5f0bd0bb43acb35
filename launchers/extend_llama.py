"""Extend the context of a pretrained Llama-shaped model.

    deepspeed launchers/extend_llama.py                                    the demonstration
    deepspeed --hostfile hosts launchers/extend_llama.py --recipe llama2_7b_8k
    deepspeed launchers/extend_llama.py --recipe my.yaml --learning_rate 1e-5 --dry_run

A recipe is one YAML file (see ``launchers/recipes/``); every field can be overridden as ``--field value``. Exit codes:
0 done; 2 something to mend in recipe, arguments or files, all of it in one message, nothing started.
"""

import sys

from tape_ds.errors import command, is_main_process
from tape_ds.training.recipe import arguments, plan


@command
def main() -> int:
    """Check the recipe, then build, train, score and report."""
    recipe = arguments.load(sys.argv[1:])
    if recipe.print_config or recipe.dry_run:
        if is_main_process():
            print(recipe.to_yaml() if recipe.print_config else plan.describe(recipe))
        return 0
    return extend(recipe)


def extend(recipe: arguments.Recipe) -> int:
    """The run itself; the heavy libraries load here, after every check that needs none of them."""
    from tape_ds.training.environment import leave_process_group, prepare_process

    prepare_process()
    from tape_ds.training import report, run

    extension = run.assemble(recipe)
    trainer = run.build_trainer(extension)
    started = report.begin(extension) if trainer.is_world_process_zero() else None
    trainer.train(resume_from_checkpoint=extension.resume)
    if started is not None:
        report.conclude(extension, trainer, started)
    leave_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
