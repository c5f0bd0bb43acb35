"""Plan a run: memory of a GPU by part, work, traffic, time, cost and reach, before anything is loaded.

    tape-ds plan llama2_7b_8k --gpus 8 --gpu a100-80
    tape-ds plan llama2_7b_8k --gpus 64 --gpu h100-80 --method full --search
    tape-ds plan c4_7b --gpus 256 --gpu h200 --deepspeed zero1 --tensor_parallel_size 8 --price 2.5
    tape-ds plan llama2_7b_8k --gpus 8 --gpu h200 --model_config my/config.json --checkpoint_layers selective

A recipe's name or path, then the options below and any field of the recipe, as for its training command. Nothing is
loaded but configurations: a base model that is not on this machine is planned by its published sizes. All figures are
predictions; docs/results/planner.md has their errors.

Exit codes: 0 it fits, or a layout of the search does; 2 a mistake; 5 it does not fit.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tape_ds.arguments import Parser, below_one
from tape_ds.config import kinds, loading
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.recipe import Recipe
from tape_ds.errors import Problem, UserError, command, raise_if_any
from tape_ds.exit_codes import ExitCode
from tape_ds.numbers import counted
from tape_ds.planning import hardware

if TYPE_CHECKING:
    from tape_ds.planning.job import Job
    from tape_ds.planning.prediction import Plan


@command
def main(argv: list[str] | None = None) -> int:
    """Read, plan, print. Raises UserError: a mistake in the command line, or no layout for this many sequences."""
    own, fields = parse(sys.argv[1:] if argv is None else argv)
    # DeepSpeed prints when it is imported
    with contextlib.redirect_stdout(sys.stderr):
        recipe, job, notes = ask(own, fields)

        from tape_ds.planning import search
        from tape_ds.planning.prediction import Plan
    plan = Plan(job)
    if own.search:
        found = search.search(job)
        if not found:
            wrong = f"no layout shares {job.global_batch} sequences among {job.layout.world} GPUs"
            raise UserError(
                Problem("global_batch_size", job.global_batch, wrong, "give a multiple of the GPUs")
            )
        plan = found[0]
        near = [each for each in found[1:] if len(each.job.layout.changes(plan.job.layout)) == 1]
        print(
            f"{len(found):,} ways, {sum(each.fits for each in found):,} fit\n\n{ranking(found[:10])}"
        )
        print(f"\nthe first, with one choice changed:\n{ranking([plan, *near])}\n")
        if plan.fits:
            print(f"its flags:\n  {plan.job.layout.command_line(job.layout)}\n")
    if recipe.layout_choice:
        print(f"the recipe leaves its layout open: {recipe.layout_choice}\n")
    for name, note in notes.items():
        print(f"{name}: {note}\n")
    print(page(plan, own.price))
    if plan.fits:
        return ExitCode.OK
    return ExitCode.DOES_NOT_FIT


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return this command's options, and the words of the recipe's fields."""
    parser = Parser(prog="tape-ds plan", description=__doc__)
    parser.add_argument("recipe", nargs="?", help="a recipe's name or path")
    parser.add_argument("--gpus", type=int, default=8, help="how many; default %(default)s")
    parser.add_argument(
        "--gpu", default="h100-80", help=f"one of: {', '.join(hardware.GPUS)}; default %(default)s"
    )
    parser.add_argument(
        "--model_config",
        help="a config.json, or the folder it is in, in place of the recipe's model",
    )
    parser.add_argument("--price", type=float, help="of one GPU for an hour, in any currency")
    parser.add_argument(
        "--documents",
        type=float,
        help="of a packed sequence, of equal length; default: one fills it",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="rank all ways to spread the run; the best one's flags",
    )
    return parser.parse_known_args(argv)


def ask(own: argparse.Namespace, fields: list[str]) -> tuple[Recipe, Job, Mapping[str, str]]:
    """Return the recipe with a layout, its job, and what the plan leaves out of a hybrid.

    Raises UserError: the recipe, its model, the GPU, or numbers that do not divide each other.
    """
    gpu = hardware.find(own.gpu)
    found = below_one(own, "gpus")
    if own.recipe is None:
        found.append(Problem("recipe", None, "missing", "name one, such as llama2_7b_8k"))
    if own.price is not None and not 0 <= own.price < math.inf:
        found.append(Problem("--price", own.price, "not a price", "give 0 or more"))
    if own.documents is not None and not 1 <= own.documents < math.inf:
        found.append(Problem("--documents", own.documents, "too few", "give 1 or more"))
    raise_if_any(found)
    recipe = load(own.recipe, fields, own.gpus)

    from tape_ds.models import hybrids
    from tape_ds.planning import recipe_job
    from tape_ds.targets.find import planned_target
    from tape_ds.training import library_checks

    raise_if_any(library_checks.check(recipe))
    config = planned_target(recipe, own.model_config).config
    recipe = recipe_job.settle(recipe, config, gpu)
    job = recipe_job.job_of(recipe, config, own.gpus, gpu)
    if own.documents is not None and job.documents is None:
        remedy = "leave --documents out, or pack sequences without attend_across"
        raise UserError(
            Problem("--documents", own.documents, "this recipe's sequences have no borders", remedy)
        )
    job = replace(job, documents=own.documents or job.documents)
    return recipe, job, hybrids.lines(config, recipe.skipped_content)


def load(name: str, fields: list[str], world: int) -> Recipe:
    """Return a recipe of any launcher, for ``world`` processes of any machine."""
    kind = kinds.of(name, ExtensionRecipe)
    return loading.load(["--recipe", name, *fields], world, kind=kind, elsewhere=True)


def ranking(plans: Sequence[Plan]) -> str:
    """Return layouts, a line each."""
    from tape_ds.planning.prediction import GIB

    lines = [f"{'GiB':>7} {'s a step':>10} {'MFU':>6}"]
    for plan in plans:
        if plan.fits:
            time = f"{plan.step.all:>10.3f} {plan.step.mfu:>6.1%}"
        else:
            time = f"{'does not fit':>17}"
        lines.append(
            f"{plan.memory.peak.total / GIB:>7.1f} {time}  {plan.job.layout.command_line()}"
        )
    return "\n".join(lines)


def page(plan: Plan, price: float | None) -> str:
    """Return memory by part, work, traffic, time and largest sizes of one job."""
    from tape_ds.planning import afterwards, roofline, search
    from tape_ds.planning.prediction import GIB

    job = plan.job
    gpu = plan.job.gpu
    found = plan.memory
    step = plan.step
    assert gpu is not None, "this command asks about GPUs"
    layout = job.layout
    done = roofline.work(job)
    tokens = job.global_batch * job.length
    moments = ", ".join(f"{each.moment} {each.total / GIB:.1f}" for each in found.moments)
    calls = f"{counted(job.attention_calls, 'call')} a layer and forward"
    sizes = {name: size for name, size in found.peak.parts().items() if size} | {
        f"in all, of {gpu.memory / GIB:.1f}": found.peak.total,
        f"host, of {gpu.host_memory / GIB:.1f}": found.host,
        "NVMe": found.nvme,
        "checkpoint on disk, of all ranks": found.checkpoint,
    }
    hours = step.all * job.steps / 3600
    run = f"{job.steps:,} steps, {hours:,.1f} h, {hours * layout.world:,.0f} GPU-hours"
    in_all = f"{found.peak.total / GIB:.1f} of {gpu.memory / GIB:.1f} GiB, without scoring"
    if price is None:
        cost = ""
    else:
        cost = f", {hours * layout.world * price:,.0f} at {price:g} for a GPU and hour"
    blocks: dict[str, Mapping[str, str]] = {
        f"{layout.world} x {gpu.name}: {layout.command_line()}": {
            "parameters": f"{job.parameters / 1e9:,.3f} B, {job.trained_parameters / 1e6:,.3f} M trained",
            "batch": f"{job.global_batch} sequences x {job.length:,} tokens = {tokens:,} a step: "
            f"{layout.micro_batch} x {layout.data} ranks x {job.accumulation} accumulation",
            "memory": f"fits: {in_all}"
            if plan.fits
            else f"IT DOES NOT FIT: {in_all}; --search finds layouts that do",
        },
        f"memory of a GPU in the {found.peak.moment}, GiB ({moments})": {
            name.replace("_", " "): f"{size / GIB:8.2f}" for name, size in sizes.items()
        },
        "TFLOP of a step, all GPUs together": {
            "matrix products": f"{done.linear * tokens / 1e12:12,.1f}",
            "attention": f"{done.attention * tokens / 1e12:12,.1f}",
            "of the model, for MFU": f"{done.model * tokens / 1e12:12,.1f}",
        },
        "sent by a GPU in a step": {
            each.kind: f"{each.bytes / 1e9:10,.2f} GB by {each.link}, {each.seconds:.3f} s"
            for each in roofline.traffic(job, gpu)
        },
        "seconds of a step (predicted)": {
            "matrix products": f"{step.linear:8.3f}",
            "attention": f"{step.attention:8.3f}, {step.attention / step.all:.0%} of the step: {calls}",
            "memory-bound operators": f"{step.memory_bound:8.3f}",
            "optimizer": f"{step.optimizer:8.3f}",
            "waiting for others": f"{step.waiting:8.3f}, and {step.hidden:.3f} more is hidden",
            "in all": f"{step.all:8.3f}",
        },
        "run": {
            "speed": f"{step.tokens_per_second:,.0f} tokens/s, {step.tokens_per_second / layout.world:,.0f} a GPU, "
            f"MFU {step.mfu:.1%}",
            "time": run + cost
            if job.steps
            else "the recipe counts epochs: the steps are not known before the data",
            "longest sequence that fits": f"{search.largest_length(job):,} tokens, one on each data-parallel rank",
            "largest micro-batch that fits": f"{search.largest_micro_batch(job):,} sequences of {job.length:,} tokens",
        },
        "after it, GiB of main memory": {
            "merge, export": f"{afterwards.merging(job) / GIB:8.2f}",
            "evaluate, serve: while they load": f"{afterwards.loading(job) / GIB:8.2f}",
        },
    }
    # one GPU sends nothing
    shown = {head: rows for head, rows in blocks.items() if rows}
    return "\n\n".join(
        "\n".join([head, *(f"  {k:<36}{v}" for k, v in rows.items())])
        for head, rows in shown.items()
    )
