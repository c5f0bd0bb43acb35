"""What a recipe would do, as far as it can be told without loading a model, data or a process group."""

from tape_ds.training.recipe import deepspeed_config
from tape_ds.training.recipe.arguments import Recipe


def describe(recipe: Recipe) -> str:
    """The plan as lines of ``name: value``, for ``--dry_run``."""
    model, data, method = recipe.model, recipe.data, recipe.method
    each, accumulation = recipe.trainer_value("per_device_train_batch_size"), recipe.accumulation()
    steps, epochs = recipe.trainer_value("max_steps"), recipe.trainer_value("num_train_epochs")
    tokens = recipe.global_batch_size * data.window
    trained = [name for name in ("position", "norms", "embeddings") if getattr(method, f"train_{name}")]
    trained = (
        ["everything"] if method.method == "full" else ["adapters", *trained] if method.method == "lora" else trained
    )
    angles = model.rope_parameters or "the model's own angles"
    precision = next((name for name in ("bf16", "fp16") if recipe.trainer_value(name)), "fp32")
    engine = f"ZeRO-{deepspeed_config.stage(recipe.deepspeed)}" if recipe.deepspeed else "no DeepSpeed"
    rows = f"PoSE, {data.pose_chunks} chunks of one document" if data.pose_chunks > 1 else "packed documents"
    lines = {
        "recipe": recipe.name,
        "model": f"{model.model} -> {model.target_length:,} positions",
        "encoding": f"{model.position_encoding} {model.position_options or ''} from {angles}",
        "method": f"{method.method}, training {', '.join(trained)}",
        "data": f"{', '.join(data.train_data)}: rows of {data.window:,} tokens ({rows})",
        "held out": ", ".join(data.eval_data) or "nothing",
        "batch": f"{recipe.global_batch_size} rows = {tokens:,} tokens a step: {each} per device x {recipe.world_size} "
        f"processes x {accumulation} accumulation",
        "steps": (f"{steps:,} ({steps * tokens:,} tokens)" if steps > 0 else f"{epochs:g} epochs")
        + f", seed {recipe.trainer_value('seed')}",
        "engine": f"{engine}, {precision}",
        "output": str(recipe.trainer_value("output_dir")),
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())
