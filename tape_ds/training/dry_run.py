"""The plan of a run and this machine's objections to it, for ``--dry_run``; nothing is started."""

import dataclasses

from tape_ds.config.recipe import Recipe
from tape_ds.errors import Problem, UserError, raised_together, redacted
from tape_ds.export import config_json
from tape_ds.models import hybrids
from tape_ds.models.files import config_file, hub
from tape_ds.models.loading.extendable import Config
from tape_ds.planning import recipe_job
from tape_ds.targets.find import known_target
from tape_ds.training import (
    compiled_ops,
    context_preview,
    device,
    earlier_run,
    generated_room,
    library_checks,
)


def describe(recipe: Recipe) -> str:
    """Return the plan as lines of ``name: value``."""
    with raised_together() as problems:
        problems += library_checks.check(recipe)
        problems += generated_room.check(recipe)
        # refuses what its model cannot do, also where nothing is trained
        target = known_target(recipe)
        if target is not None:
            target.check_weights()
    config = None
    lines = {"recipe": recipe.name}
    if target is None:
        lines |= recipe.outline()
    else:
        recipe = target.recipe
        config = target.config
        lines |= target.outline()
        if target.CHANGES_ANGLES and target.base is not None:
            lines["served"] = config_json.described(config, target.base.folder)
        lines |= hybrids.lines(config, recipe.skipped_content)
    recipe = recipe_job.settle_here(recipe, config)
    name = recipe.base_name
    asked = name is not None and recipe.dry_run and config_file.is_on_hub(name)
    if asked and (why := hub.config(name).why_not):
        lines["model"] += f" (its config.json was not read: {why})"
    if recipe.trains:
        lines |= _steps(recipe)
        lines |= context_preview.lines(recipe)
    lines |= {"device": device.describe(recipe), "engine": recipe.engine}
    if recipe.layout_choice:
        lines["layout"] = recipe.layout_choice
    if recipe.trains:
        lines["memory"] = _memory(recipe, config)
        if (compiled := compiled_ops.outline(recipe.deepspeed)) is not None:
            lines["compiled"] = compiled
    lines["output"] = str(recipe.trainer.output_dir)

    width = max(map(len, lines))
    text = [f"{name:<{width}}  {redacted(value)}" for name, value in lines.items()]
    local = dataclasses.replace(recipe, elsewhere=False)
    here = [*local.problems(set()), *device.check(recipe, config), *library_checks.check(local)]
    here += earlier_run.check_folder(recipe)
    if here:
        text += ["This machine would refuse the run:", *(f"  {problem}" for problem in here)]
    return "\n".join(text)


def _steps(recipe: Recipe) -> dict[str, str]:
    trainer = recipe.trainer
    tokens = recipe.global_batch_size * recipe.window
    at_most = "" if recipe.FULL_ROWS else "up to "
    whole = f"{recipe.global_batch_size} sequences = {at_most}{tokens:,} tokens a step"
    length = f"{trainer.num_train_epochs:g} epochs"
    if trainer.max_steps > 0:
        length = f"{trainer.max_steps:,} ({at_most}{trainer.max_steps * tokens:,} tokens)"
    rates = f"learning rate {trainer.learning_rate:g}, weight decay {trainer.weight_decay:g}"
    if recipe.trains_positions:
        rates += f"; position parameters: {recipe.optimization.outline(trainer.learning_rate)}"
    return {
        "batch": f"{whole}: {recipe.division}",
        "steps": f"{length}, seed {trainer.seed}",
        "rates": rates,
    }


def _memory(recipe: Recipe, config: Config | None) -> str:
    """Return the line about memory; UserError where a library cannot count it, such as torch for a tensor of more
    numbers than 64 bits can count."""
    try:
        return recipe_job.memory_line(recipe, config)
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        wrong = f"the memory of a step of {recipe.window:,} tokens could not be counted ({reason[:300]})"
        raise UserError(
            Problem("window", recipe.window, wrong, "give fewer tokens, or a smaller model")
        ) from error
