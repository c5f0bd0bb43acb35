"""The announcement of a run before it starts, and its report and stored results after it has ended."""

import itertools
import sys
from collections.abc import Mapping, Sequence

from tape_ds import results
from tape_ds.data.mix import MixedSequences
from tape_ds.data.sources.weights import percent
from tape_ds.errors import redacted
from tape_ds.models import hybrids
from tape_ds.numbers import summarise
from tape_ds.run_folder import RESULTS, TRAINED
from tape_ds.scoring import tables
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
    recipe = run.recipe
    arguments = run.arguments
    total, trained = run.parameter_counts

    # the kind's own rows: model and encoding come first, the others after what is trained
    of_kind = run.outline()
    rows = {"model": of_kind.pop("model"), "encoding": of_kind.pop("encoding")}
    rows["method"] = (
        f"{recipe.method_name}: {trained / 1e6:,.3f} M parameters trained ({trained / total:.2%})"
    )
    # without the names that peft puts around the model's own
    names = tuple(name.removeprefix("base_model.model.") for name in run.names)
    rows["trained"] = summarise(names) or "nothing"
    rows |= of_kind
    rows |= hybrids.lines(run.config, recipe.skipped_content)
    if run.data.bad_rows.problems:
        rows["left out"] = str(run.data.bad_rows)
    rows["batch"] = run.batch
    rows["steps"] = f"{run.steps:,}, seed {arguments.seed}"
    if run.names:
        rows["rates"] = run.rates
    rows |= run.target_weights
    if recipe.averaging.average_last:
        count = recipe.averaging.average_last
        rows["average"] = f"the trained weights are the mean of the last {count} checkpoints"
    if recipe.layout_choice:
        rows["layout"] = recipe.layout_choice
    checkpointing = "on" if arguments.gradient_checkpointing else "off"
    rows["engine"] = f"{recipe.engine}, checkpointing {checkpointing}"
    rows["device"] = device.describe(recipe)
    rows["memory"] = run.plan.summary()
    rows["results"] = str(run.output)
    tables.print_rows(rows)
    return results.collect(
        command=sys.argv,
        seed=arguments.seed,
        config=recipe.as_dict(),
        data=run.job.target.fingerprints(held_out=True),
        processes=arguments.world_size,
    )


def conclude(run: Run, trainer: TapeTrainer, started: results.Result) -> None:
    # of a resumed run's first part, too
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    folder = run.output / RESULTS
    logged = []
    for entry in history:
        logged.append({name: entry[name] for name in LOGGED if name in entry})
    figures = {
        "train_loss": logged,
        "steps": trainer.state.global_step,
        "skipped_steps": trainer.skipped_steps,
        "tokens": trainer.state.global_step * run.tokens_per_step,
        "tokens_per_second": mean_speed(history),
        "peak_memory_bytes": trainer.peak_memory_bytes,
        "trained": list(run.names),
        "parameters": dict(zip(("all", "trained"), run.parameter_counts, strict=True)),
        **run.figures(),
    }
    if run.data.bad_rows.problems:
        figures["bad_rows"] = [
            redacted(f"{row.value}: {row.wrong}") for row in run.data.bad_rows.problems
        ]
        print(f"left out of the data: {run.data.bad_rows}")
    if isinstance(run.sequences, MixedSequences):
        by_source = run.sequences.tokens(trainer.state.global_step * run.recipe.global_batch_size)
        figures[TokensBySource.NAME] = by_source
        whole = sum(by_source.values())
        shares = []
        for spec, tokens in by_source.items():
            shares.append(f"{redacted(spec)} {tokens:,} ({percent(tokens / whole)})")
        print("tokens of each source: " + "; ".join(shares))
    results.save(started.finish(figures), folder / "run.json")

    # matplotlib takes a second to import, and one process draws
    from tape_ds.scoring import plots

    if history:
        plots.loss_curve(history, folder / "loss.png")
    measured = []
    for entry in history:
        if PositionUpdates.NAME in entry:
            measured.append((entry["step"], entry[PositionUpdates.NAME]))
    if measured:
        plots.position_updates(measured, folder / "position_updates.png")
    run.show()
    pictures = ", ".join(sorted(file.name for file in folder.glob("*.png"))) or "none"
    print(f"results: {folder}, pictures: {pictures}\ntrained weights: {run.output / TRAINED}")
    print(
        f"a page of all this: tape-ds evaluate report {run.output} --output {run.output / 'page'}",
        flush=True,
    )


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
    if tokens:
        return tokens / seconds
    return None
