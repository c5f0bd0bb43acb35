"""RULER's scores in a model card: of the run that trained the model, and of an evaluation of these weights."""

from collections.abc import Callable, Mapping
from typing import Any

from tape_ds import results
from tape_ds.checkpoint.source_model import SourceModel
from tape_ds.errors import UserError
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import length
from tape_ds.results import Result, by_variant
from tape_ds.run_folder import EVALUATION, TRAINED
from tape_ds.scoring import models, ruler

FILE = "ruler.json"


def of_run(result: Result, shown: Callable[[str], str]) -> str | None:
    """Return what a run asked its variants, as Markdown; None if it asked nothing. ``shown`` cuts paths."""
    rows = result.figures.get("ruler") or []
    if not rows:
        return None
    figures_of = {}
    for variant, asked in by_variant(rows).items():
        figures_of[str(variant)] = ruler.figures(ruler.replies_of(asked), seed=result.seed or 0)
    samples = rows[0]["samples"]
    haystack = result.figures.get("ruler_haystack")
    return f"{_table(figures_of)}\n\n{_asked(figures_of, samples, haystack, shown)}"


def of_evaluation(result: Result, shown: Callable[[str], str]) -> str:
    """Return what ``tape-ds evaluate ruler`` found, as Markdown."""
    figures = result.figures
    named: dict[str, Mapping[str, Any]] = {"this model": figures}
    form = "as a text to continue"
    if result.config.get("chat"):
        form = "in the form of its chat template"
    asked = _asked(named, result.config["samples"], figures["haystack"], shown, form)
    return f"{_table(named)}\n\n{asked}"


def evaluation_of(source: SourceModel) -> tuple[Result | None, str]:
    """Return the stored evaluation of a run's weights, or None and why one that is there is left out."""
    if source.record is None:
        return None, ""
    folder = source.folder.parent / EVALUATION
    if source.folder.name != TRAINED:
        folder = folder / source.folder.name
    file = folder / FILE
    if not file.is_file():
        return None, ""
    left_out = f"{EVALUATION}/{FILE} is left out:"
    try:
        result = results.load(file)
        if result.finished is None or "effective" not in result.figures:
            return None, f"{left_out} the evaluation has not ended."
    except UserError as error:
        return None, f"{left_out} {error.problems[0].field} {error.problems[0].wrong}."
    evaluated = result.model or {}
    if "position_updates" in evaluated or "angles" in evaluated:
        return None, f"{left_out} it is of this model with other positions."
    if evaluated.get("sha256") != models.digest_of(
        str(source.folder), base_anyway=source.base_anyway
    ):
        return None, f"{left_out} it is of other weights."
    return result, ""


def _table(by_name: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the means by length and the effective lengths, a row for each model."""
    lengths = [scored["length"] for scored in next(iter(by_name.values()))["lengths"]]
    published = f"effective length: RULER's rule ({100 * ruler.PUBLISHED_THRESHOLD:.1f} %)"
    own = f"its own rule ({100 * ruler.OWN_SHARE:.0f} % of its score at {length(lengths[0])})"
    rows = []
    for name, figures in by_name.items():
        means = []
        for scored in figures["lengths"]:
            interval = f"{100 * scored['low']:.0f}-{100 * scored['high']:.0f}"
            means.append(f"{100 * scored['mean']:.1f} ({interval})")
        reached = (_effective(figures, "published"), _effective(figures, "own"))
        rows.append([name, *means, *reached])
    return markdown_table(["mean of the tasks, %", *map(length, lengths), published, own], rows)


def _effective(figures: Mapping[str, Any], rule: str) -> str:
    found = figures["effective"][rule]
    if found["length"] is None:
        reached = f"below {length(figures['lengths'][0]['length'])}"
    else:
        reached = length(found["length"])
    return f"{reached} (at least {100 * found['threshold']:.1f} %: probability {100 * found['probability']:.0f} %)"


def _asked(
    by_name: Mapping[str, Mapping[str, Any]],
    samples: int,
    haystack: str | None,
    shown: Callable[[str], str],
    form: str = "",
) -> str:
    """Return what the numbers are of: they compare with no others."""
    figures = next(iter(by_name.values()))
    tasks = list(dict.fromkeys(cell["task"] for cell in figures["cells"]))
    text = f"Asked: {', '.join(tasks)}; {samples} questions of each at each length"
    if form:
        text += f", {form}"
    # numbers with another haystack do not compare
    if haystack:
        text += f"; essays from `{shown(haystack)}`"
    text += ". In brackets: 95 % intervals."
    if len(tasks) < ruler.ALL_TASKS:
        text += f" RULER's rule is one of all {ruler.ALL_TASKS} tasks."
    return text
