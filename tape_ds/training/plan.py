"""What a recipe would do, as far as that is known without loading a model, data or a process group; and every
launcher's way there, or on to the run itself."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from tape_ds.config import command_line, deepspeed_config, help, kinds, loading
from tape_ds.config.recipe import Recipe
from tape_ds.distributed.rendezvous import report_failures
from tape_ds.errors import command, is_main_process, raise_if_any, redacted
from tape_ds.models.loading import config_file


@command
@report_failures
def main(launcher: str, assemble: Callable[[Any], Any]) -> int:
    """Check the recipe, then build, train, score and report.

    Args:
        launcher: name of its file, by which recipes say whose they are.
        assemble: makes the run of a recipe, see :mod:`tape_ds.training.runs`; imports that only when it is called.
    """
    argv = sys.argv[1:]
    names = command_line.read(argv, []).get("recipe") or [kinds.KINDS[launcher].DEFAULT]
    kind = kinds.taken(launcher, names[-1])
    if help.answered(argv, kind):
        return 0
    recipe = loading.load(argv, kind=kind)
    if shown(recipe):
        return 0
    # the heavy libraries load here, after every check that needs none of them
    from tape_ds.training.environment import end_process, prepare_process

    prepare_process()
    from tape_ds.training.execution import launch

    end_process(launch(recipe, assemble))


def shown(recipe: Recipe) -> bool:
    """Return whether this command line asked to look only; the main process then prints what it asked for."""
    if not (recipe.print_config or recipe.dry_run):
        return False
    if is_main_process():
        print(recipe.to_yaml() if recipe.print_config else describe(recipe), flush=True)
    return True


def _memory(recipe: Recipe) -> str:
    from tape_ds.planning import recipe_job  # torch and transformers, which nothing else here needs
    from tape_ds.training import model_config

    try:
        return recipe_job.memory_line(recipe, model_config.known_config(recipe))
    except (RuntimeError, TypeError) as error:  # torch's words for a tensor of more numbers than it can count
        return f"beyond counting ({str(error).splitlines()[0]})"


def describe(recipe: Recipe) -> str:
    """Return the plan as lines of ``name: value``, for ``--dry_run``."""
    from tape_ds.planning import recipe_job
    from tape_ds.training import device, model_config
    from tape_ds.training.checks import libraries

    raise_if_any(libraries.check(recipe))
    recipe = recipe_job.settle_here(recipe, model_config.known_config)
    model_config.known_config(recipe)  # refuses what its model cannot do, also where nothing is trained
    name = getattr(recipe.model, "model", None)  # a new model has none
    why = config_file.not_read(name) if name is not None and recipe.dry_run else None
    each, accumulation = recipe.trainer_value("per_device_train_batch_size"), recipe.accumulation()
    layout = recipe.layout()
    rate = recipe.trainer_value("learning_rate")
    steps, epochs = recipe.trainer_value("max_steps"), recipe.trainer_value("num_train_epochs")
    tokens, at_most = recipe.global_batch_size * recipe.window, "" if recipe.FULL_ROWS else "up to "
    precision = next((name for name in ("bf16", "fp16") if recipe.trainer_value(name)), "fp32")
    engine = f"ZeRO-{deepspeed_config.stage(recipe.deepspeed)}" if recipe.deepspeed else "no DeepSpeed"
    training = {
        "batch": f"{recipe.global_batch_size} sequences = {at_most}{tokens:,} tokens a step: {each} per device x "
        f"{layout.data} {layout.readers} x {accumulation} accumulation",
        "steps": (f"{steps:,} ({at_most}{steps * tokens:,} tokens)" if steps > 0 else f"{epochs:g} epochs")
        + f", seed {recipe.trainer_value('seed')}",
        "rates": f"learning rate {rate:g}, weight decay {recipe.trainer_value('weight_decay'):g}"
        + f"; position parameters: {recipe.optimization.outline(rate)}" * recipe.trains_positions,
    }
    lines = {
        "recipe": recipe.name,
        **recipe.outline(),
        **({"model": f"{recipe.outline()['model']} (its config.json was not read: {why})"} if why else {}),
        **(training if recipe.trains else {}),
        "device": device.describe(recipe),
        "engine": f"{engine}, {precision}",
        **({"layout": recipe.layout_choice} if recipe.layout_choice else {}),
        **({"memory": _memory(recipe)} if recipe.trains else {}),
        "output": str(recipe.trainer_value("output_dir")),
    }
    width = max(map(len, lines))
    shown = "\n".join(f"{name:<{width}}  {redacted(value)}" for name, value in lines.items())
    local = dataclasses.replace(recipe, elsewhere=False)
    here = [*local.problems(set()), *device.check(recipe), *libraries.check(local)]
    return "\n".join(
        [shown, *("This machine would refuse the run:" for _ in here[:1]), *(f"  {each}" for each in here)]
    )
