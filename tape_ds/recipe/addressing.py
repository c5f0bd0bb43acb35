"""What a recipe of ``train_arithmetic.py`` says of a task of addressing: its options and its lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tape_ds.data.addressing import lengths, tasks
from tape_ds.data.addressing.lengths import Test
from tape_ds.data.addressing.task import AddressingTask
from tape_ds.data.addressing.tasks import TASKS


@dataclass(frozen=True)
class Addressing:
    """A task, and the lengths that it is trained and tested at."""

    task: AddressingTask
    trained: tuple[int, int]
    """The shortest and the longest sequence's."""
    tested: tuple[int, ...]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Addressing":
        """From the fields of a recipe, with stand-ins for those that are wrong, which a check says."""
        name, options = fields["task"], fields["task_options"] or {}
        task = TASKS[name] if tasks.check(name, options) else tasks.make(name, options)
        given = fields["train_lengths"] or []
        trained = (given[0], given[-1]) if not wrong_trained(task, given) else (task.shortest, task.shortest)
        tested = fields["test_lengths"] or lengths.reached(task, trained[1])
        return cls(task, trained, tuple(each for each in tested if not lengths.wrong_length(task, each)))

    @property
    def window(self) -> int:
        """Tokens of the longest training sequence."""
        return self.task.tokens(self.trained[1])

    @property
    def test_tokens(self) -> int:
        """Tokens of the longest sequence of a test."""
        return max(map(self.task.tokens, self.tested), default=self.window)

    @property
    def tests(self) -> list[Test]:
        """What the trained model is asked."""
        return lengths.tests(self.task, self.tested)

    def derived(self) -> dict[str, Any]:
        """Return fields of the recipe that follow from it."""
        return {"task_options": {**vars(self.task)}, "test_lengths": list(self.tested), "window": self.window}


def wrong_trained(task: AddressingTask, given: list[int]) -> str | None:
    """Return what to give instead of these lengths of training; None: they are well."""
    if not 1 <= len(given) <= 2 or given[0] > given[-1]:
        return "give the shortest and the longest, or one for both"
    return lengths.wrong_length(task, given[0]) or lengths.wrong_length(task, given[-1])
