"""The section about RULER's questions within a run, asked before training and after."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from tape_ds.config.trainer import RecipeView
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import COMPARED, FREE, Section, Tokens, rule

RULER_TASKS = (
    *(
        "niah_single_1",
        "niah_single_2",
        "niah_single_3",
        "niah_multikey_1",
        "niah_multikey_2",
        "niah_multikey_3",
    ),
    *("niah_multiquery", "niah_multivalue", "vt", "cwe", "fwe"),
)
"""RULER's tasks whose questions are generated, by lm-eval's names."""


class RulerScores(Section):
    """RULER, before training and after."""

    ruler_lengths: Annotated[list[Annotated[Tokens, Field(ge=1024)]], FREE, COMPARED] = []
    """Tokens of RULER's questions with their replies; more than the model's length is allowed. Empty: no questions."""
    ruler_tasks: Annotated[list[str], FREE, COMPARED] = ["niah_multikey_2", "vt"]
    """RULER's tasks that are asked, of those without downloads."""
    ruler_samples: Annotated[int, FREE, COMPARED] = Field(5, ge=1, le=500)
    """Questions of each task and length."""

    def outline(self) -> str:
        if not self.ruler_lengths:
            return "none"
        lengths = ", ".join(f"{length:,}" for length in self.ruler_lengths)
        return f"{self.ruler_samples} questions of each of {', '.join(self.ruler_tasks)} in {lengths} tokens"

    @rule("ruler_lengths", "ruler_tasks")
    def _questions(self, recipe: RecipeView) -> Iterator[Problem]:
        lengths = self.ruler_lengths
        tasks = self.ruler_tasks
        if len(set(lengths)) < len(lengths):
            yield Problem(
                "ruler_lengths", lengths, "a length is repeated", "give each number of tokens once"
            )
        if len(set(tasks)) < len(tasks):
            yield Problem("ruler_tasks", tasks, "a task is repeated", "give each once")
        for task in tasks:
            if task not in RULER_TASKS:
                yield Problem(
                    "ruler_tasks",
                    task,
                    "not a task without downloads",
                    did_you_mean(task, RULER_TASKS),
                )
        if lengths and not tasks:
            yield Problem(
                "ruler_tasks",
                tasks,
                "ruler_lengths asks for questions",
                "name a task, or no lengths",
            )
