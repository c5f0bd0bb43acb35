"""Extend the same model by one method after another on equal tokens, and compare loss by position, passkeys and cost.

    python tools/compare_methods.py                                           SmolLM2-135M, 8k to 16k
    python tools/compare_methods.py --methods tape lora 'longlora{"group_tokens": 512}' --output runs/three
    python tools/compare_methods.py --recipe smollm2_32k --processes 8 -- --max_steps 500

Each is a run of ``launchers/extend_llama.py`` with the recipe ``PREFIX_METHOD`` (``smollm2_16k_tape_lora`` is that of
the method ``tape+lora`` for ``--recipe smollm2_16k``), in a folder of its own below ``--output``. In braces any field
of that recipe can be changed; whatever stands behind ``--`` goes to every run. Methods that train anything have to
train on the same number of tokens, and all are asked the same questions: else nothing is started. ``--seeds 0 1 2``
trains each with several, and the page then has intervals and says which differ from ``--reference``
(docs/comparing.md). A run that is complete is not repeated, one that was cut short goes on from its last checkpoint, so
the same command can be started again. The untouched model is scored once, by the first run. After every run the table
(md, csv, json) and the plot are written to ``--output``, or to ``--results``.

Exit codes: 0 done; 1 a run failed (the others are compared, and the failed one is named); 2 something to mend, nothing
was started.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tape_ds import methods
from tape_ds.errors import Problem, UserError, command, did_you_mean, raise_if_any
from tape_ds.installation import ROOT
from tape_ds.recipe import extension, files
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.training.comparison import arms, method_table, options, page, runs, summary
from tape_ds.training.comparison.arms import Arm
from tape_ds.training.comparison.measures import Measure
from tape_ds.training.comparison.study import Study

LAUNCHER = ROOT / "launchers" / "extend_llama.py"
NAME = "compare_methods"
DEFAULT = ("tape", "tape+lora", "lora", "longlora", "theta", "yarn", "norms")
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
    own, passed_on = options.split(sys.argv[1:] if argv is None else argv)
    given = parse(own)
    planned = check(given, passed_on)
    primary = options.primary(given, method_table.measures(planned[0].recipe.as_dict()["passkey_lengths"]))
    asked = sys.argv if argv is None else [f"{NAME}.py", *argv]
    return runs.compare(
        planned,
        given.jobs,
        lambda run: runs.train(with_or_without_scores_before(run, planned)),
        lambda: write(planned, given, primary, asked),
    )


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line before ``--``."""
    where = "what the recipes' names or paths begin with"
    parser = options.parser(__doc__, name=NAME, flag="methods", recipe="smollm2_16k", recipe_help=where)
    return options.parse(parser, argv, "methods", DEFAULT)


def check(given: argparse.Namespace, passed_on: list[str]) -> list[runs.Planned]:
    """The runs, once every one's recipe has been checked as the launcher would, and all of them against each other.

    Raises:
        UserError: everything wrong with any of them, or what makes them no comparison.
    """
    planned = options.plan(
        *(given, passed_on, LAUNCHER, extension.load),
        flag="methods",
        own=("method",),
        read_text=lambda text: read_arm(text, given.recipe),
        read_fields=lambda name, fields: arm_of(name, fields, given.recipe),
        ignored=("eval_before",),
    )
    recipes = {run.arm: run.recipe for run in planned if isinstance(run.recipe, extension.ExtensionRecipe)}
    raise_if_any([*unequal_tokens(recipes), *arms.unequal(recipes, SAME)])
    return planned


def read_arm(text: str, prefix: str) -> Arm:
    """``METHOD`` or ``METHOD{"field": value}``.

    Raises:
        UserError: no such method, no recipe for it, a field that this command decides.
    """
    method, fields = arms.read(text, "methods")
    own = (*arms.OWN, "method", "seed")
    raise_if_any([Problem(name, text, "decided by this command", "remove it") for name in own if name in fields])
    return arm_of(arms.labelled(method, fields), {"method": method, **fields}, prefix)


def arm_of(label: str, fields: Mapping[str, Any], prefix: str) -> Arm:
    """An arm from its fields, ``method`` among them, in the recipe of that method.

    Raises:
        UserError: no such method, or no recipe for it.
    """
    method = fields.get("method")
    if method not in methods.available():
        wrong = "unknown" if method is not None else f"{label} has none"
        raise UserError(Problem("method", method, wrong, did_you_mean(str(method), methods.available())))
    name = f"{prefix}_{method.replace('+', '_')}" + ".yaml" * ("/" in prefix)
    if files.find(name, files.RECIPES) is None:
        beginnings = sorted(each for each in files.recipes_of("extend_llama") if each.startswith(f"{prefix}_"))
        remedy = f"there are: {', '.join(beginnings) or f'none that begin with {prefix}_'} (in {files.RECIPES})"
        raise UserError(Problem("method", method, f"there is no recipe {name}", remedy))
    return Arm(label, {"recipe": name, **fields})


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


def with_or_without_scores_before(run: runs.Planned, planned: Sequence[runs.Planned]) -> runs.Planned:
    """The run told whether to score the untouched model: yes until one has, unless somebody said otherwise."""
    if any(argument.split("=")[0] == "--eval_before" for argument in run.arguments):
        return run
    scored = any(UNTOUCHED in result.figures["loss_by_position"] for _, result in runs.complete(planned))
    return dataclasses.replace(run, arguments=[*run.arguments, "--eval_before", json.dumps(not scored)])


def write(planned: Sequence[runs.Planned], given: argparse.Namespace, primary: Measure, asked: Sequence[str]) -> str:
    """Table and plot of the complete runs."""
    from tape_ds.training import plots

    found = runs.complete(planned)
    stored = [result for _, result in found]
    differing = [name for name in summary.differences(stored) if name != "seed"]
    rows = [method_table.row(run, result, differing) for run, result in found]
    untouched = next((each for each in stored if UNTOUCHED in each.figures["loss_by_position"]), None)
    if untouched is not None:
        rows.insert(0, method_table.row_untouched(UNTOUCHED, untouched))
    native, asked_of = stored[0].figures["native_length"], planned[0].recipe.as_dict()["passkey_lengths"]
    study = Study("method", rows, method_table.measures(asked_of), primary, given.reference)
    folder = Path(given.results or given.output)
    text = page.write(
        study,
        method_table.columns(native, asked_of),
        summary.collect(asked, stored),
        {"native_length": native},
        folder=folder,
        name=NAME,
        lead=method_table.LEAD,
        csv=method_table.as_csv(rows),
    )
    curves = {
        arm: SpanLosses.merge(SpanLosses.from_dict(each["loss"]["spans"]) for each in own)
        for arm, own in study.arms.items()
        if all(each["loss"] for each in own)
    }
    if curves:
        plots.loss_by_position(curves, folder / f"{NAME}.png", native)
    return f"{text}\nwritten to {folder}"


if __name__ == "__main__":
    sys.exit(main())
