"""All experiments, in the order of the paper's figures and tables."""

import re

from tape_ds.errors import Problem, UserError, did_you_mean
from tools.reproduce import analyses, arithmetic, extension, scratch
from tools.reproduce.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        *(arithmetic.FIGURE_2, extension.FIGURE_3, arithmetic.FIGURE_5, arithmetic.FIGURE_6, analyses.FIGURE_7),
        *(scratch.TABLE_1, extension.TABLE_2, analyses.TABLE_3, analyses.TABLE_4, analyses.TABLE_5, scratch.TABLE_6),
        *(scratch.TABLE_7, analyses.TABLE_8, extension.TABLE_9, scratch.TABLE_10),
    )
}


def find(text: str) -> Experiment:
    """The experiment that somebody means: ``table6``, ``Table 6``, ``fig5``.

    Raises:
        UserError: there is none.
    """
    name = re.sub(r"[\s_.-]+", "", text.lower())
    name = re.sub(r"^(fig|tab)(?=\d)", lambda short: {"fig": "figure", "tab": "table"}[short[1]], name)
    if name not in EXPERIMENTS:
        raise UserError(Problem("table", text, "unknown", did_you_mean(name, EXPERIMENTS)))
    return EXPERIMENTS[name]
