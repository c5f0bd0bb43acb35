"""Plan a run: memory of a GPU by part, work, traffic, time, cost and reach, before anything is loaded.

    python tools/plan.py llama2_7b_8k --gpus 8 --gpu a100-80
    python tools/plan.py llama2_7b_8k --gpus 64 --gpu h100-80 --method full --search
    python tools/plan.py c4_7b --gpus 256 --gpu h200 --deepspeed zero1 --tensor_parallel_size 8 --price 2.5
    python tools/plan.py llama2_7b_8k --gpus 8 --gpu h200 --model_config my/config.json --checkpoint_layers selective
    python tools/plan.py --published             what others measured, beside what this planner says
    python tools/plan.py --table                 the tables of docs/scaling.md, again

A recipe's name or path, then this command's own options below and any field of the recipe, as for its launcher. Nothing
is loaded but configurations: a base model that is not at hand is planned by its published sizes. All figures are
predictions (docs/scaling.md says how good they are); no GPU was measured.

Exit codes: 0 it fits, or one of a search does; 2 something to mend; 3 it does not fit.
"""

import argparse
import contextlib
import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tape_ds import installation, results, storage
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, command, raise_if_any
from tape_ds.planning import clock, hardware, published, search, sweep, tables
from tape_ds.planning.job import Job, problems
from tape_ds.training import forecast
from tape_ds.training.recipe import files, loading
from tape_ds.training.recipe.arithmetic import ArithmeticRecipe
from tape_ds.training.recipe.extension import ExtensionRecipe
from tape_ds.training.recipe.finetuning import FinetuningRecipe
from tape_ds.training.recipe.pretraining import PretrainingRecipe
from tape_ds.training.recipe.recipe import Recipe

DOES_NOT_FIT = 3
KINDS: tuple[type[Recipe], ...] = (ExtensionRecipe, PretrainingRecipe, FinetuningRecipe, ArithmeticRecipe)
STORED = installation.work() / "docs" / "results" / "scaling"
PACKED = {"llama2_7b_8k": "TAPE", "llama2_7b_8k_lora": "RoPE"}
"""Recipes of the table of attention's share, and their encodings."""
DOCUMENTS = (1, 4, 16, 64)
"""Of their rows, there."""
LEVER_SETTING = ("llama2-7b", "h100-80", 8, 8192)
"""Where the table of levers is made: model, GPU, how many, tokens of a row."""


@command
def main(argv: list[str] | None = None) -> int:
    """Read, plan, print."""
    given = sys.argv[1:] if argv is None else argv
    own, fields = parse(given)
    if own.published:
        print(tables.aligned(published_rows()))
        return 0
    if own.table:
        store(Path(own.table), results.collect(command=[Path(__file__).name, *given]))
        return 0
    if own.recipe is None:
        raise UserError(Problem("recipe", None, "missing", "name one, such as llama2_7b_8k"))
    with contextlib.redirect_stdout(sys.stderr):  # what DeepSpeed says when it is imported is no part of the answer
        job = ask(own, fields)
    raise_if_any([] if own.search else problems(job))
    return show_search(job) if own.search else show(job, own.json)


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """This command's options, and the recipe's fields."""
    parser = Parser(description=__doc__)
    parser.add_argument("recipe", nargs="?", help="a recipe's name or path")
    parser.add_argument("--gpus", type=int, default=8, help="how many; default %(default)s")
    parser.add_argument("--gpu", default="h100-80", help=f"one of: {', '.join(hardware.GPUS)}; default %(default)s")
    parser.add_argument("--model_config", help="a config.json, or the folder it is in, in place of the recipe's model")
    parser.add_argument("--price", type=float, help="of one GPU for an hour, in any currency")
    parser.add_argument("--documents", type=float, help="of a packed row, of equal length; default: one fills it")
    parser.add_argument("--search", action="store_true", help="rank all ways to spread the run, and explain the best")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a page")
    parser.add_argument("--published", action="store_true", help="published figures beside the planner's")
    parser.add_argument("--table", nargs="?", const=str(STORED), help="write the stored tables into this folder")
    return parser.parse_known_args(argv)


def ask(own: argparse.Namespace, fields: list[str]) -> Job:
    """The job that the command line asks about.

    Raises:
        UserError: the recipe, its model, the GPU, or numbers that do not divide each other.
    """
    gpu = hardware.find(own.gpu)
    found = []
    if own.gpus < 1:
        found.append(Problem("gpus", own.gpus, "too small", "give 1 or more"))
    if own.price is not None and not 0 <= own.price < math.inf:
        found.append(Problem("price", own.price, "not a price", "give 0 or more"))
    if own.documents is not None and not 1 <= own.documents < math.inf:
        found.append(Problem("documents", own.documents, "too few", "give 1 or more"))
    raise_if_any(found)
    recipe = load(own.recipe, fields, own.gpus)
    config = forecast.config_of(recipe, own.model_config)
    job = forecast.job(recipe, config, own.gpus, gpu)
    if own.documents is not None and job.documents is None:
        remedy = "leave --documents out, or pack rows without attend_across"
        raise UserError(Problem("documents", own.documents, "this recipe's rows have no borders", remedy))
    return replace(job, price=own.price, documents=own.documents or job.documents)


def load(name: str, fields: list[str], world: int) -> Recipe:
    """The recipe of that name, of whichever launcher it is.

    Raises:
        UserError: it does not exist, or is wrong.
    """
    wrong: list[Problem] = []
    said = files.read_recipe(name, ExtensionRecipe.LAUNCHER, wrong).get("launcher")
    kinds = {kind.LAUNCHER: kind for kind in KINDS}
    kind = kinds.get(str(said.value) if said is not None else "", ExtensionRecipe)
    return loading.load(["--recipe", name, *fields], world, kind=kind)


def show(job: Job, as_json: bool) -> int:
    """Print one plan."""
    if as_json:
        print(json.dumps(tables.figures(job), indent=2))
    else:
        print(tables.plan(job))
    return 0 if search.fits(job) else DOES_NOT_FIT


def show_search(job: Job) -> int:
    """Print the ranking, why its head won, and the plan of that."""
    found = search.search(job)
    if not found:
        wrong = f"{job.global_batch} rows cannot be shared out over {job.layout.gpus} GPUs in any way"
        raise UserError(Problem("global_batch_size", job.global_batch, wrong, "give a multiple of the GPUs"))
    fitting = sum(each.fits for each in found)
    print(f"{len(found):,} ways, {fitting:,} fit\n\n{tables.ranking(found)}\n\nthe first, with one lever changed:")
    print("\n".join(f"  {line}" for line in search.explain(found)))
    print(f"\n{tables.plan(found[0].job)}")
    return 0 if fitting else DOES_NOT_FIT


def published_rows() -> list[Sequence[str]]:
    """What others measured, beside the planner's figures."""
    found: list[Sequence[str]] = [("setting", "quantity", "published", "predicted", "ratio", "note")]
    for row in published.rows():
        note = "fitted" if row.fitted else row.because
        shown = [f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in (row.published, row.predicted)]
        found.append((row.name, row.quantity, *shown, f"{row.ratio:.2f}", note))
    return found


def store(folder: Path, started: results.Result) -> None:
    """Write every table of docs/scaling.md as CSV and JSON; ``docs/figures/draw_scaling.py`` draws them."""
    points = [sweep.point(scaling, *setting) for scaling in sweep.SCALINGS for setting in sweep.jobs(scaling)]
    levers = {method: sweep.as_rows(sweep.levers(lever_job(method))) for method in sweep.METHODS}
    packed = attention_rows()
    checked = [dict(zip(published_rows()[0], row, strict=True)) for row in published_rows()[1:]]
    storage.write_text(folder / "scaling.csv", as_csv(sweep.as_rows(points)))
    lever_rows = [{"method": method, **row} for method, rows in levers.items() for row in rows]
    storage.write_text(folder / "levers.csv", as_csv(lever_rows))
    storage.write_text(folder / "published.csv", as_csv(checked))
    storage.write_text(folder / "attention.csv", as_csv(packed))
    storage.write_text(folder / "tables.md", page(sweep.as_rows(points), lever_rows, packed, checked))
    stored = {"points": sweep.as_rows(points), "levers": levers, "attention": packed, "published": checked}
    results.save(started.finish(stored), folder / "scaling.json")


def attention_rows() -> list[dict[str, Any]]:
    """What attention takes of a step of packed rows, recipes as they are shipped, on 8 GPUs."""
    found = []
    for recipe, encoding in PACKED.items():
        for gpu in reversed(sweep.GPU_NAMES):
            for documents in DOCUMENTS:
                words = [recipe, "--gpu", gpu, "--documents", str(documents)]
                with contextlib.redirect_stdout(sys.stderr):
                    job = ask(*parse(words))
                told = clock.of(job)
                row = {"recipe": recipe, "encoding": encoding, "gpu": gpu, "documents": documents}
                row |= {"calls": job.attention_calls, "attention_seconds": round(told.attention, 3)}
                found.append(row | {"step_seconds": round(told.step, 3), "share": round(told.attention / told.step, 3)})
    return found


def page(
    points: list[dict[str, Any]],
    levers: list[dict[str, Any]],
    packed: list[dict[str, Any]],
    checked: list[dict[str, str]],
) -> str:
    """All tables as markdown, from the stored rows alone."""
    parts = [
        "# Predicted scaling, all tables",
        "",
        "Made by `python tools/plan.py --table`; see [scaling](../../scaling.md).",
        "",
    ]
    for scaling in sweep.SCALINGS:
        for gpu in sweep.GPU_NAMES:
            parts += [f"## {scaling.capitalize()} scaling, {gpu}: tokens/s a GPU (MFU)", ""]
            parts += [scaling_table([each for each in points if (each["scaling"], each["gpu"]) == (scaling, gpu)]), ""]
    for method in sweep.METHODS:
        parts += [f"## Levers, {method}", "", lever_table([each for each in levers if each["method"] == method]), ""]
    parts += ["## Attention in packed rows", "", attention_table(packed), ""]
    parts += [
        "## Against published figures",
        "",
        tables.markdown(list(checked[0]), [list(row.values()) for row in checked]),
    ]
    return "\n".join(parts) + "\n"


def scaling_table(points: list[dict[str, Any]]) -> str:
    """A row for each model, method and length; a column for each number of GPUs."""
    counts = sorted({int(each["gpus"]) for each in points})
    rows: dict[tuple[str, str, int], list[str]] = {}
    for each in sorted(points, key=lambda point: int(point["gpus"])):
        key = (each["model"], each["method"], int(each["length"]))
        rows.setdefault(key, []).append(_cell(each))
    header = ["model, trained, tokens", *(f"{count:,} GPUs" for count in counts)]
    return tables.markdown(header, [[f"{a}, {b}, {c:,}", *cells] for (a, b, c), cells in rows.items()])


def attention_table(packed: list[dict[str, Any]]) -> str:
    """A row for each recipe and GPU, a column for each number of documents."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in packed:
        key = (each["recipe"], each["encoding"], each["gpu"], str(each["calls"]))
        said = f"{each['attention_seconds']:.2f} of {each['step_seconds']:.2f} s ({each['share']:.0%})"
        rows.setdefault(key, []).append(said)
    counts = [f"{count} document{'s' * (count > 1)} a row" for count in DOCUMENTS]
    header = ["recipe", "encoding", "8 x", "calls a layer", *counts]
    return tables.markdown(header, [[*key, *cells] for key, cells in rows.items()])


def _cell(point: dict[str, Any]) -> str:
    if point["layout"]:
        return f"{int(point['tokens_per_second_per_gpu']):,} ({float(point['mfu']):.0%})"
    return "does not fit" if float(point["gigabytes"]) else "too few rows"


def lever_table(levers: list[dict[str, Any]]) -> str:
    """A row for each lever."""
    header = ["lever", "GB a GPU", "saves, GB", "s a step", "slower", "sent by a GPU, GB"]
    rows = [
        [
            *(each["lever"], str(each["gigabytes"]), str(each["saved_gigabytes"]), str(each["step_seconds"])),
            *(f"{float(each['slower']):+.1%}", str(each["sent_gigabytes"])),
        ]
        for each in levers
    ]
    return tables.markdown(header, rows)


def lever_job(method: str) -> Job:
    """The job that each lever is tried on: ZeRO-1 and nothing else."""
    name, gpu, gpus, length = LEVER_SETTING
    (found,) = [
        job
        for model, trained, job in sweep.jobs("strong", [gpus])
        if (model, trained, job.length) == (name, method, length) and job.gpu == hardware.find(gpu)
    ]
    return replace(found, layout=replace(found.layout, zero=1))


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Rows of equal keys."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    sys.exit(main())
