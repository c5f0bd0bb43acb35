"""The announcement of a run before it starts, and its report and stored results after it has ended."""

import itertools
import sys
from collections.abc import Mapping, Sequence

from tape_ds import results
from tape_ds.config import deepspeed_config
from tape_ds.data.mix import MixedSequences
from tape_ds.data.sources.weights import percent
from tape_ds.errors import redacted
from tape_ds.numbers import summarise
from tape_ds.run_folder import RESULTS, TRAINED
from tape_ds.scoring import plots, tables
from tape_ds.training import device
from tape_ds.training.callbacks import PositionUpdates, TokensBySource
from tape_ds.training.objective import Weighted
from tape_ds.training.run import Run
from tape_ds.training.trainer import TapeTrainer

LOGGED = ("step", "loss", *Weighted.names)
"""What ``run.json`` has of a logging step."""


def begin(run: Run) -> results.Result:
    """Print what is about to be trained (model, parameters, data, sizes, folder), and return the facts of the run that
    are known at its start; rank 0 only."""
    recipe, arguments = run.recipe, run.arguments
    total, trained = run.parameter_counts
    stage = deepspeed_config.stage(recipe.deepspeed)
    micro, layout = arguments.per_device_train_batch_size, recipe.layout(arguments.world_size)
    own = run.outline()
    tokens = f"{run.most_tokens:,} tokens"
    if run.mean_tokens != run.most_tokens:
        tokens = f"{run.mean_tokens:,} tokens in the mean (at most {run.most_tokens:,})"
    rows = {
        "model": own.pop("model"),
        "encoding": own.pop("encoding"),
        "method": f"{run.method}: {trained / 1e6:,.3f} M parameters trained ({trained / total:.2%})",
        # without the names that peft puts around the model's own
        "trained": summarise(tuple(name.removeprefix("base_model.model.") for name in run.names)) or "nothing",
        **own,
        **({"left out": str(run.bad_rows)} if run.bad_rows.problems else {}),
        "batch": f"{recipe.global_batch_size} sequences x {tokens} = {run.tokens_per_step:,} tokens "
        f"a step ({micro} per device x {layout.data} {layout.readers} x "
        f"{arguments.gradient_accumulation_steps} accumulation)",
        "steps": f"{run.steps:,}, seed {arguments.seed}",
        **({"rates": run.rates} if run.names else {}),
        **weighting(run),
        **averages(run),
        **({"layout": recipe.layout_choice} if recipe.layout_choice else {}),
        "engine": f"{f'ZeRO-{stage}' if arguments.deepspeed else 'no DeepSpeed'}, "
        f"{'bf16' if arguments.bf16 else 'fp16' if arguments.fp16 else 'fp32'}, checkpointing "
        f"{'on' if arguments.gradient_checkpointing else 'off'}",
        "device": device.describe(recipe),
        **({"memory": run.plan.summary()} if run.plan is not None else {}),
        "results": str(run.output),
    }
    tables.print_rows(rows)
    return results.collect(
        command=sys.argv,
        seed=arguments.seed,
        config=recipe.as_dict(),
        data=run.fingerprints(held_out=True),
        processes=arguments.world_size,
    )


def weighting(run: Run) -> dict[str, str]:
    """Return lines about the weights of targets; none where all count the same."""
    chosen = run.recipe.weighting
    if chosen.target_weights == "equal":
        return {}
    lines = {"target weights": chosen.outline(run.recipe.window)}
    return lines if run.exact_weights is None else {**lines, "left context": str(run.exact_weights)}


def averages(run: Run) -> dict[str, str]:
    count = run.recipe.averaging.average_last
    return {"average": f"the trained weights are the mean of the last {count} checkpoints"} if count else {}


def conclude(run: Run, trainer: TapeTrainer, started: results.Result) -> None:
    history = [entry for entry in trainer.state.log_history if "loss" in entry]  # of a resumed run's first part, too
    folder = run.output / RESULTS
    figures = {
        "train_loss": [{name: entry[name] for name in LOGGED if name in entry} for entry in history],
        "steps": trainer.state.global_step,
        "skipped_steps": trainer.skipped_steps,
        "tokens": trainer.state.global_step * run.tokens_per_step,
        "tokens_per_second": mean_speed(history),
        "peak_memory_bytes": trainer.peak_memory_bytes,
        "trained": list(run.names),
        "parameters": dict(zip(("all", "trained"), run.parameter_counts, strict=True)),
        **run.figures(),
    }
    if bad := run.bad_rows.problems:
        figures["bad_rows"] = [redacted(f"{each.value}: {each.wrong}") for each in bad]
        print(f"left out of the data: {run.bad_rows}")
    if isinstance(run.sequences, MixedSequences):
        found = run.sequences.tokens(trainer.state.global_step * run.recipe.global_batch_size)
        figures[TokensBySource.NAME] = found
        whole = sum(found.values())
        shares = (f"{redacted(spec)} {tokens:,} ({percent(tokens / whole)})" for spec, tokens in found.items())
        print("tokens of each source: " + "; ".join(shares))
    results.save(started.finish(figures), folder / "run.json")
    if history:
        plots.loss_curve(history, folder / "loss.png")
    measured = [(entry["step"], entry[PositionUpdates.NAME]) for entry in history if PositionUpdates.NAME in entry]
    if measured:
        plots.position_updates(measured, folder / "position_updates.png")
    run.show()
    pictures = ", ".join(sorted(file.name for file in folder.glob("*.png"))) or "none"
    print(f"results: {folder}, pictures: {pictures}\ntrained weights: {run.output / TRAINED}")
    print(f"a page of all this: tape-ds evaluate report {run.output} --output {run.output / 'page'}", flush=True)


def mean_speed(history: Sequence[Mapping[str, float]]) -> float | None:
    """Return tokens / seconds of all lines of a log but the first, which warms caches up; None without others.

    A line's speed is that of the steps since the line before it, and each step has as many tokens. The mean of the
    speeds themselves would count a slow interval for too little.
    """
    timed = [entry for entry in history if entry.get("tokens_per_second", 0) > 0]
    # of one token a step: how many it has cancels out
    tokens = 0.0
    seconds = 0.0
    for before, entry in itertools.pairwise(timed):
        steps = entry["step"] - before["step"]
        tokens += steps
        seconds += steps / entry["tokens_per_second"]
    return tokens / seconds if tokens else None
