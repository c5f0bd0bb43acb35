"""What a person reads before a run starts and after it has ended, and what is stored of it."""

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tape_ds import results
from tape_ds.scoring.loss_by_position import SpanLosses
from tape_ds.training import memory, plots
from tape_ds.training.held_out import read_scores
from tape_ds.training.run import SCORES, Run, source_fingerprints
from tape_ds.training.trainer import ExtensionTrainer

GIB = 2**30


def announce(run: Run) -> None:
    """Say what is about to happen: model, what is trained, data, speed-independent sizes, where results go."""
    recipe, arguments = run.recipe, run.arguments
    total, trained = run.parameter_counts
    stage = engine_stage(arguments)
    micro = arguments.per_device_train_batch_size
    tokens = micro * recipe.data.window
    estimate = memory.estimate(
        run.config,
        parameters=total,
        trained=trained,
        tokens=tokens,
        ranks=arguments.world_size,
        stage=stage,
        element_bytes=run.dtype.itemsize,
        checkpointing=arguments.gradient_checkpointing,
    )
    rows = {
        "model": f"{recipe.model.model}, {total / 1e6:,.1f} M parameters, native context "
        f"{run.native.max_position_embeddings:,} -> {recipe.model.target_length:,}",
        "encoding": f"{run.config.position_encoding} {run.config.position_options or ''} from {_rope(run)}",
        "method": f"{recipe.method.method}: {trained / 1e6:,.3f} M parameters trained ({trained / total:.2%})",
        "trained": summarise(run.names),
        "data": f"{', '.join(recipe.data.train_data)}: {len(run.rows.rows):,} "
        + (f"documents, PoSE with {recipe.data.pose_chunks} chunks" if recipe.data.pose_chunks > 1 else "packed rows"),
        "batch": f"{recipe.global_batch_size} rows x {recipe.data.window:,} tokens = {run.tokens_per_step:,} tokens a "
        f"step ({micro} per device x {arguments.world_size} processes x "
        f"{arguments.gradient_accumulation_steps} accumulation)",
        "steps": f"{len(run.rows) // recipe.global_batch_size:,}, learning rate {arguments.learning_rate:g}, seed "
        f"{arguments.seed}",
        "engine": f"{'ZeRO-' + str(stage) if arguments.deepspeed else 'no DeepSpeed'}, "
        f"{'bf16' if arguments.bf16 else 'fp16' if arguments.fp16 else 'fp32'}, checkpointing "
        f"{'on' if arguments.gradient_checkpointing else 'off'}",
        "memory": f"about {estimate.total / GIB:.2f} GiB a process: weights {estimate.weights / GIB:.2f}, gradients "
        f"{estimate.gradients / GIB:.2f}, optimizer {estimate.optimizer / GIB:.2f}, activations "
        f"{estimate.activations / GIB:.2f}, logits {estimate.logits / GIB:.2f} (arithmetic, not measured)",
        "held out": ", ".join(document.name for document in run.held_out) or "nothing",
        "results": str(run.output) + _earlier(run),
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in rows.items():
        table.add_row(f"[bold]{key}", value)
    _print(table)


def _earlier(run: Run) -> str:
    """What the run's folder already holds and a new run leaves there."""
    found = sorted(folder.name for folder in run.output.glob("checkpoint-*")) if run.resume is None else []
    return f" (still holds an earlier run's {', '.join(found)})" if found else ""


def engine_stage(arguments: Any) -> int:
    """The ZeRO stage of these TrainingArguments; 0 without DeepSpeed."""
    plugin = getattr(arguments, "hf_deepspeed_config", None)
    return plugin.config.get("zero_optimization", {}).get("stage", 0) if plugin is not None else 0


def summarise(names: tuple[str, ...]) -> str:
    """Exact names, with the layer numbers of otherwise equal ones drawn together."""
    groups: dict[str, list[int]] = {}
    for name in names:
        parts = name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        layer = int(parts[number]) if number is not None else -1
        shape = ".".join("{}" if i == number else part for i, part in enumerate(parts))
        groups.setdefault(shape, []).append(layer)
    return "\n".join(shape.replace("{}", _ranges(layers)) for shape, layers in groups.items())


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 4] -> "{0-2,4}"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return "{" + ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts) + "}"


def _rope(run: Run) -> str:
    parameters = run.config.rope_parameters
    factor = f" x{parameters['factor']:g}" if parameters.get("factor") else ""
    return f"{parameters['rope_type']} angles{factor}, theta {parameters['rope_theta']:g}"


def conclude(run: Run, trainer: ExtensionTrainer, started: results.Result) -> None:
    """Write run.json and the pictures, and print the table; rank 0 only."""
    scores = read_scores(run.output / SCORES) if run.held_out else {}
    history = [entry for entry in trainer.state.log_history if "loss" in entry]  # of a resumed run's first part, too
    folder = run.output / "results"
    merged = {variant: SpanLosses.merge(parts.values()) for variant, parts in scores.items()}
    figures = {
        "train_loss": [{"step": entry["step"], "loss": entry["loss"]} for entry in history],
        "steps": trainer.state.global_step,
        "skipped_steps": trainer.skipped_steps,
        "trained": list(run.names),
        "parameters": dict(zip(("all", "trained"), run.parameter_counts, strict=True)),
        "loss_by_position": {v: {n: part.to_dict() for n, part in parts.items()} for v, parts in scores.items()},
    }
    results.save(started.finish(figures), folder / "run.json")
    if history:
        plots.loss_curve(history, folder / "loss.png")
    if merged:
        plots.loss_by_position(merged, folder / "loss_by_position.png", run.native.max_position_embeddings)
        print_scores(scores, run.native.max_position_embeddings)
    _print(f"results: {folder}\ntrained weights: {run.output / 'trained'}")


def begin(run: Run) -> results.Result:
    """Say what is about to happen, and collect what is known of the run at its start; rank 0 only."""
    announce(run)
    return results.collect(
        command=sys.argv,
        seed=run.arguments.seed,
        config=run.recipe.as_dict(),
        data=source_fingerprints(run.recipe),
        processes=run.arguments.world_size,
    )


def print_scores(scores: Mapping[str, Mapping[str, SpanLosses]], native_length: int) -> None:
    """A table per document: loss by span, one row per variant, past the native length in bold."""
    documents = list(next(iter(scores.values())))
    for name in documents:
        first = next(iter(scores.values()))[name]
        table = Table(title=f"loss by position on {name} (nats per token)", title_justify="left")
        table.add_column("")
        for start in first.starts:
            table.add_column(_place(start), justify="right")
        table.add_column("mean", justify="right")
        table.add_column(f">= {_place(native_length)}", justify="right")
        for variant, parts in scores.items():
            losses = parts[name]
            cells = [f"{value:.2f}" for value in losses.nll]
            cells = [f"[bold]{c}" if s >= native_length else c for c, s in zip(cells, losses.starts, strict=True)]
            past = f"{losses.mean_between(native_length):.3f}" if losses.starts[-1] >= native_length else "-"
            table.add_row(variant, *cells, f"{losses.mean:.3f}", past)
        _print(table)


def _place(position: int) -> str:
    """A position as this field writes lengths: 512, 2k, 16k."""
    return f"{position / 1024:g}k" if position >= 1024 else str(position)


def _print(content: Any) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(content)
    sys.stdout.flush()
