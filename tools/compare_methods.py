"""Extend the same model by one method after another on equal tokens, and compare loss by position, passkeys and cost.

    python tools/compare_methods.py                                           SmolLM2-135M, 8k to 16k
    python tools/compare_methods.py --methods tape lora 'longlora{"group_tokens": 512}' --output runs/three
    python tools/compare_methods.py --recipe smollm2_32k --processes 8 -- --max_steps 500

Each is a run of ``launchers/extend_llama.py`` with the recipe ``PREFIX_METHOD`` (``smollm2_16k_tape_lora`` is that of
the method ``tape+lora`` for ``--recipe smollm2_16k``), in a folder of its own below ``--output``. In braces any field
of that recipe can be changed; whatever stands behind ``--`` goes to every run. Methods that train anything have to
train on the same number of tokens, and all are asked the same questions: else nothing is started. A run that is
complete is not repeated, one that was cut short goes on from its last checkpoint, so the same command can be started
again. The untouched model is scored once, by the first run. After every run the table (md, csv, json) and the plot are
written to ``--output``, or to ``--results``.

Exit codes: 0 done; 1 a run failed (the others are compared, and the failed one is named); 2 something to mend, nothing
was started.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tape_ds import results
from tape_ds.errors import Problem, UserError, command, did_you_mean, raise_if_any
from tape_ds.scoring.loss_by_position import SpanLosses
from tape_ds.training import methods
from tape_ds.training.comparison import entries, method_table, runs, summary
from tape_ds.training.comparison.entries import Entry
from tape_ds.training.recipe import extension, files

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = ROOT / "launchers" / "extend_llama.py"
NAME = "compare_methods"
DEFAULT = ("tape", "tape+lora", "lora", "longlora", "theta", "yarn", "norms")
OWN = ("recipe", "method", "output_dir", "resume_from_checkpoint")
"""Fields that this command decides for each run."""
SAME = (
    *("model", "target_length", "train_data", "seed", "eval_data", "eval_length", "eval_span"),
    *("passkey_lengths", "passkey_trials", "passkey_form"),
)
"""Fields without which rows of one table would not compare."""
UNTOUCHED = "untouched"
"""The name under which a run scores the base model."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then run, and compare what there is after every run."""
    own, passed_on = entries.split(sys.argv[1:] if argv is None else argv)
    options = parse(own)
    planned = check(options, passed_on)
    folder, asked = Path(options.results or options.output), sys.argv if argv is None else [f"{NAME}.py", *argv]
    failed, text = [], ""
    for run in planned:
        if not runs.carry_out(with_or_without_scores_before(run, planned)):
            failed.append(run)
        elif found := complete(planned):
            text = write(found, folder, asked)
    if text:
        print(f"{text}\nwritten to {folder}", flush=True)
    for run in failed:
        print(f"FAILED: {run.label}, see {run.log}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line before ``--``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(DEFAULT), help='METHOD or METHOD{"field": value}')
    parser.add_argument("--recipe", default="smollm2_16k", help="what the recipes' names or paths begin with")
    parser.add_argument("--output", default=f"runs/{NAME}", help="folder of the runs")
    parser.add_argument("--results", help="folder of the table and the plot; default: --output")
    parser.add_argument("--processes", type=int, help="processes of each run; default: 2 on a CPU, else every GPU")
    return parser.parse_args(argv)


def check(options: argparse.Namespace, passed_on: list[str]) -> list[runs.Planned]:
    """The runs, once every one's recipe has been checked as the launcher would, and all of them against each other.

    Raises:
        UserError: everything wrong with any of them, or what makes them no comparison.
    """
    chosen, wrong = entries.read_all(options.methods, "methods", lambda text: read_entry(text, options.recipe))
    raise_if_any(wrong + entries.check_passed_on(passed_on, OWN) + runs.check_processes(options.processes))
    count = options.processes or runs.default_processes()
    planned = runs.plan_all(
        {entry.label: arguments(entry, options, passed_on) for entry in chosen},
        LAUNCHER,
        lambda own: extension.load(own, count),
        ignored=("eval_before",),
    )
    recipes = {run.label: run.recipe for run in planned if isinstance(run.recipe, extension.ExtensionRecipe)}
    raise_if_any([*unequal_tokens(recipes), *unequal_questions(recipes)])
    return planned


def read_entry(text: str, prefix: str) -> Entry:
    """``METHOD`` or ``METHOD{"field": value}``.

    Raises:
        UserError: no such method, no recipe for it, a field that this command decides.
    """
    entry = entries.read(text, "methods")
    if entry.name not in methods.available():
        raise UserError(Problem("methods", entry.name, "unknown", did_you_mean(entry.name, methods.available())))
    raise_if_any([Problem(n, text, "decided by this command", "remove it") for n in OWN if n in entry.options])
    name = recipe_name(entry, prefix)
    if files.find(name, files.RECIPES) is None:
        beginnings = sorted(each for each in files.recipes_of("extend_llama") if each.startswith(f"{prefix}_"))
        remedy = f"there are: {', '.join(beginnings) or f'none that begin with {prefix}_'} (in {files.RECIPES})"
        raise UserError(Problem("methods", entry.name, f"there is no recipe {name}", remedy))
    return entry


def recipe_name(entry: Entry, prefix: str) -> str:
    """Name or path of an entry's recipe."""
    name = f"{prefix}_{entry.name.replace('+', '_')}"
    return f"{name}.yaml" if "/" in prefix else name


def arguments(entry: Entry, options: argparse.Namespace, passed_on: Sequence[str]) -> list[str]:
    """The launcher's command line for one entry."""
    chosen = ["--recipe", recipe_name(entry, options.recipe), "--method", entry.name, *passed_on]
    for name, value in entry.options.items():
        chosen += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return [*chosen, "--output_dir", str(Path(options.output) / entry.folder)]


def unequal_tokens(recipes: Mapping[str, extension.ExtensionRecipe]) -> Iterator[Problem]:
    """Whether the methods that train anything see the same number of tokens."""
    trained = {label: recipe for label, recipe in recipes.items() if recipe.trains}
    endless = [label for label, recipe in trained.items() if recipe.trainer_value("max_steps") <= 0]
    if endless:
        wrong = f"{', '.join(endless)} would train for epochs, whose tokens are not known beforehand"
        yield Problem("max_steps", -1, wrong, "give max_steps")
        return
    found = {
        label: recipe.trainer_value("max_steps") * recipe.global_batch_size * recipe.window
        for label, recipe in trained.items()
    }
    if len(set(found.values())) > 1:
        wrong = "trained on unequal tokens (max_steps x global_batch_size x window)"
        shown = ", ".join(f"{label}: {tokens:,}" for label, tokens in found.items())
        yield Problem("methods", shown, wrong, "change max_steps or global_batch_size of some of them")


def unequal_questions(recipes: Mapping[str, extension.ExtensionRecipe]) -> Iterator[Problem]:
    """Whether all start from the same model and are scored alike."""
    for name in SAME:
        values = {label: recipe.as_dict().get(name) for label, recipe in recipes.items()}
        if len({json.dumps(value, default=str) for value in values.values()}) > 1:
            shown = ", ".join(f"{label}: {value}" for label, value in values.items())
            yield Problem(name, shown, "differs between methods that are compared", "give all of them the same")


def with_or_without_scores_before(run: runs.Planned, planned: Sequence[runs.Planned]) -> runs.Planned:
    """The run told whether to score the untouched model: yes until one has, unless somebody said otherwise."""
    if any(argument.split("=")[0] == "--eval_before" for argument in run.arguments):
        return run
    scored = any(UNTOUCHED in result.figures["loss_by_position"] for result in complete(planned).values())
    return dataclasses.replace(run, arguments=[*run.arguments, "--eval_before", json.dumps(not scored)])


def complete(planned: Sequence[runs.Planned]) -> dict[str, results.Result]:
    """Results of the runs that are complete, by label."""
    return {run.label: result for run in planned if (result := run.result()) is not None}


def write(found: Mapping[str, results.Result], folder: Path, asked: Sequence[str]) -> str:
    """Table and plot of the complete runs; returns the table for people."""
    from tape_ds.training import plots

    runs_found = list(found.values())
    differing = summary.differences(runs_found)
    rows = [method_table.row(label, result, differing) for label, result in found.items()]
    untouched = next((r for r in runs_found if UNTOUCHED in r.figures["loss_by_position"]), None)
    if untouched is not None:
        rows.insert(0, method_table.row_untouched(UNTOUCHED, untouched))
    native = runs_found[0].figures["native_length"]
    whole = summary.collect(asked, runs_found).finish({"native_length": native, "methods": rows})
    text = method_table.as_markdown(rows, whole, f"tools/{NAME}.py")
    summary.write(whole, folder, NAME, text, method_table.as_csv(rows))
    curves = {each["method"]: SpanLosses.from_dict(each["loss"]["spans"]) for each in rows if each["loss"]}
    if curves:
        plots.compare_losses(curves, folder / f"{NAME}.png", native)
    return text


if __name__ == "__main__":
    sys.exit(main())
