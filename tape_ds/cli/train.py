"""The commands that train: ``extend``, ``pretrain``, ``finetune`` and ``generated``, and the files of ``launchers``.

Every field of the recipe is an option. Exit codes: 0 done, or stopped on request with a committed checkpoint; 2 a
mistake in recipe, arguments or files, nothing was started; 3 stopped by a guard; 4 stuck; 1 anything else
(docs/staying_alive.md).
"""

import sys

from tape_ds.cli import recipe_help
from tape_ds.config import command_line, kinds, loading
from tape_ds.distributed.rendezvous import report_failures
from tape_ds.errors import command, is_main_process


@command
@report_failures
def main(launcher: str, argv: list[str] | None = None) -> int:
    """Train with a recipe for ``launcher``, the name of its file in ``launchers``."""
    words = sys.argv[1:] if argv is None else argv
    names = command_line.read(words, []).get("recipe") or [kinds.KINDS[launcher].DEFAULT]
    kind = kinds.taken(launcher, names[-1])
    if recipe_help.answered(words, kind):
        return 0
    recipe = loading.load(words, kind=kind)
    if recipe.print_config:
        if is_main_process():
            print(recipe.to_yaml(), flush=True)
        return 0

    # the heavy libraries load here, after every check that needs none of them
    if recipe.dry_run:
        if is_main_process():
            from tape_ds.training.dry_run import describe

            print(describe(recipe), flush=True)
        return 0

    from tape_ds.training.environment import end_process, prepare_process

    prepare_process()
    from tape_ds.training.execution import launch

    end_process(launch(recipe))
