"""The plan of a run and this machine's objections to it, for ``--dry_run``; nothing is started."""

import dataclasses

from tape_ds.config import deepspeed_config
from tape_ds.config.recipe import Recipe
from tape_ds.engines import table
from tape_ds.errors import Problem, UserError, collecting, raise_if_any, redacted
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
    problems = library_checks.check(recipe)
    config = None
    with collecting(problems):
        # refuses what its model cannot do, also where nothing is trained
        target = known_target(recipe)
        if target is not None:
            target.check_weights()
            config = target.config
    problems += generated_room.check(recipe)
    raise_if_any(problems)
    recipe = recipe_job.settle_here(recipe, config)
    lines = {"recipe": recipe.name, **recipe.outline()}
    if target is not None:
        if target.CHANGES_ANGLES:
            lines["served"] = (
                f"after tape-ds export: {table.summary(config_json.planned(target.config))}"
            )
        lines |= hybrids.lines(target.config)
        if (short := target.note_of_length()) is not None:
            lines["length"] = short
    name = recipe.base_name
    asked = name is not None and recipe.dry_run and config_file.is_on_hub(name)
    if asked and (why := hub.config(name).why_not):
        lines["model"] += f" (its config.json was not read: {why})"
    if recipe.trains:
        layout = recipe.layout()
        value = recipe.trainer_value
        tokens = recipe.global_batch_size * recipe.window
        at_most = "" if recipe.FULL_ROWS else "up to "
        steps = value("max_steps")
        rate = value("learning_rate")
        length = f"{value('num_train_epochs'):g} epochs"
        if steps > 0:
            length = f"{steps:,} ({at_most}{steps * tokens:,} tokens)"
        rates = f"learning rate {rate:g}, weight decay {value('weight_decay'):g}"
        if recipe.trains_positions:
            rates += f"; position parameters: {recipe.optimization.outline(rate)}"
        lines |= {
            "batch": f"{recipe.global_batch_size} sequences = {at_most}{tokens:,} tokens a step: "
            f"{value('per_device_train_batch_size')} per device x {layout.data} {layout.readers} x "
            f"{recipe.accumulation()} accumulation",
            "steps": f"{length}, seed {value('seed')}",
            "rates": rates,
            **context_preview.lines(recipe),
        }
    precision = next((name for name in ("bf16", "fp16") if recipe.trainer_value(name)), "fp32")
    engine = "no DeepSpeed"
    if recipe.deepspeed:
        engine = f"ZeRO-{deepspeed_config.stage(recipe.deepspeed)}"
    lines |= {"device": device.describe(recipe), "engine": f"{engine}, {precision}"}
    if recipe.layout_choice:
        lines["layout"] = recipe.layout_choice
    if recipe.trains:
        lines["memory"] = _memory(recipe, config)
        if (compiled := compiled_ops.outline(recipe)) is not None:
            lines["compiled"] = compiled
    lines["output"] = str(recipe.trainer_value("output_dir"))

    width = max(map(len, lines))
    text = [f"{name:<{width}}  {redacted(value)}" for name, value in lines.items()]
    local = dataclasses.replace(recipe, elsewhere=False)
    here = [*local.problems(set()), *device.check(recipe, config), *library_checks.check(local)]
    here += earlier_run.check_folder(recipe)
    if here:
        text += ["This machine would refuse the run:", *(f"  {problem}" for problem in here)]
    return "\n".join(text)


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
