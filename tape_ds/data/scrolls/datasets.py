"""The data sets of SCROLLS by name: where each is kept, what it asks for and what it is scored by.

``stdlib`` stands beside the seven: questions about the running Python's own sources, made on the spot
(:mod:`.made`), so that everything here runs on a machine without a download. It is no part of SCROLLS.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tape_ds.errors import Problem, UserError, did_you_mean

HUB_REPOSITORY = "tau/scrolls"
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Dataset:
    """One data set."""

    name: str
    """As a recipe and a command take it; of its zip file in :data:`HUB_REPOSITORY` the stem."""
    kind: Literal["answer", "summary"]
    """What the model is to write; it decides the prompt (:mod:`.prompts`)."""
    metric: Literal["f1", "exact_match", "rouge"]
    """What SCROLLS scores it by; rouge: the geometric mean of ROUGE-1, -2 and -L."""
    questions: bool = True
    """Whether a text has a question of its own before it."""

    @property
    def answer_tokens(self) -> int:
        """Tokens that an answer has at most, without EOS: 200, and 1,000 for a summary, as in TAPE's code."""
        return 1000 if self.kind == "summary" else 200


DATASETS: Mapping[str, Dataset] = {
    each.name: each
    for each in (
        Dataset("qasper", "answer", "f1"),
        Dataset("contract_nli", "answer", "exact_match"),
        Dataset("narrative_qa", "answer", "f1"),
        Dataset("quality", "answer", "exact_match"),
        Dataset("qmsum", "summary", "rouge"),
        Dataset("summ_screen_fd", "summary", "rouge", questions=False),
        Dataset("gov_report", "summary", "rouge", questions=False),
    )
}
"""The seven, in the order of the TAPE paper's Table 1."""

MADE = Dataset("stdlib", "answer", "f1")
"""Made on the spot."""


def available() -> list[str]:
    """Return names that :func:`find` knows."""
    return [*DATASETS, MADE.name]


def find(name: str, field: str = "dataset") -> Dataset:
    """Return the data set of this name; ``field`` is what messages call it.

    Raises:
        UserError: there is none.
    """
    if name == MADE.name:
        return MADE
    if name not in DATASETS:
        raise UserError(Problem(field, name, "no such data set", did_you_mean(name, available())))
    return DATASETS[name]
