"""The recipe of ``train_generated.py``: train a new model of any size and encoding on a generated task."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from tape_ds import encodings
from tape_ds.config import new_model
from tape_ds.data import generated
from tape_ds.data.generated import TASKS, arithmetic
from tape_ds.data.generated.addressing import REACHES, AddressingTask
from tape_ds.data.generated.arithmetic import ArithmeticTask
from tape_ds.data.generated.task import Size, Task, Test
from tape_ds.distributed.launch_command import TRAINING
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import COMPARED, DERIVED, FREE, Section, Tokens, WrongValueError, rule

DIGITS = 4  # stand-in for digits that are missing
LONGEST = 200  # most digits of an operand in training
DRAWN_FROM = 2
"""Range of an encoding that draws positions, in multiples of the longest test's tokens; the published ratio."""


class GeneratedData(Section):
    """The task and its lengths: digits of arithmetic, tokens of addressing.

    A class in an annotation: only its tasks have the field.
    """

    task: Annotated[str, COMPARED]
    """Name of a task (docs/generated_tasks.md)."""
    max_digits: Annotated[int, COMPARED, ArithmeticTask] = Field(DERIVED, ge=1)
    """The most digits of the first operand (see the task). Required for arithmetic."""
    max_digits_second: Annotated[int, COMPARED, ArithmeticTask] = Field(DERIVED, ge=1)
    """The same of the second operand; default max_digits."""
    test_digits: Annotated[int, COMPARED, ArithmeticTask] = DERIVED
    """Digits of the longer operand in tests: the end of the grid of ``tape-ds evaluate generated``, and the length
    that an encoding is made for which must know it beforehand (``randpe``); default twice the trained ones."""
    train_lengths: Annotated[list[int], COMPARED, AddressingTask] = DERIVED
    """Shortest and longest text (see the task for its unit), or one length for both. Required for addressing."""
    test_lengths: Annotated[list[int], FREE, COMPARED, AddressingTask] = DERIVED
    """Lengths of the tests of addressing; default the longest trained one, 1.5 times and twice that."""
    task_options: Annotated[dict[str, Any], COMPARED, AddressingTask] = DERIVED
    """Options of a task of addressing; default the task's own."""
    window: Tokens = DERIVED
    """Tokens that the model is made for (max_position_embeddings); default the longest training sequence."""
    held_out_samples: Annotated[int, FREE, COMPARED] = Field(1000, ge=0, le=100_000)
    """Problems of the trained lengths, kept from training, that are answered afterwards, spread evenly over all pairs
    of lengths; 0: none. ``tape-ds evaluate generated`` has the grid of longer ones. For a task of addressing, the
    sequences of each of its tests."""

    @field_validator("task")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in TASKS:
            raise WrongValueError("no such task", did_you_mean(name, TASKS))
        return name


_OF_A_KIND = {
    name: mark
    for name, field in GeneratedData.model_fields.items()
    for mark in field.metadata
    if isinstance(mark, type)
}


@dataclass(frozen=True)
class Lengths:
    """A task with its sizes in training and in tests."""

    task: Task
    trained: Size  # see `training_size`
    tested: tuple[int, ...]  # see `tests`


def wrong_trained(task: AddressingTask, given: list[int]) -> str | None:
    """Return a remedy for lengths of training that the task does not have."""
    if not 1 <= len(given) <= 2 or given[0] > given[-1]:
        return "give the shortest and the longest, or one for both"
    return task.wrong_length(given[0]) or task.wrong_length(given[-1])


@dataclass(frozen=True, kw_only=True)
class GeneratedRecipe(new_model.NewModelRecipe):
    """A recipe of this launcher."""

    LAUNCHER: ClassVar[str] = TRAINING["generated"]
    DEFAULT: ClassVar[str] = "addition_tiny"
    STAND_INS: ClassVar[Mapping[str, Any]] = {
        **new_model.STAND_INS,
        "task": "addition",
        "max_digits": DIGITS,
    }
    FULL_ROWS: ClassVar[bool] = False

    model: new_model.NewModel
    data: GeneratedData

    def derived(self) -> dict[str, Any]:
        lengths = self.lengths
        window = lengths.task.tokens(lengths.trained)
        own: dict[str, Any] = {"window": window}
        if isinstance(lengths.task, ArithmeticTask):
            own |= {
                "max_digits_second": lengths.trained[0],
                "test_digits": arithmetic.TESTED * max(lengths.trained),
            }
        else:
            own |= {"task_options": lengths.task.options, "test_lengths": list(lengths.tested)}
        return own | new_model.derived(self.model, self.data.window or window)

    @property
    def lengths(self) -> Lengths:
        """The recipe's, with stand-ins for values that are wrong."""
        data = self.data
        name = self.data.task
        options = self.data.task_options or {}
        task = TASKS[name] if generated.check(name, options) else generated.make(name, options)
        if isinstance(task, ArithmeticTask):
            first = max(1, data.max_digits or DIGITS)
            second = max(1, data.max_digits_second or first)
            return Lengths(task, (first, second), task.reached((first, second), data.test_digits))
        assert isinstance(task, AddressingTask), "there is no other kind of task"
        given = data.train_lengths or []
        trained = (
            (task.shortest, task.shortest) if wrong_trained(task, given) else (given[0], given[-1])
        )
        reached = {
            min(int(trained[1] * reach) // task.step * task.step, task.longest) for reach in REACHES
        }
        tested = data.test_lengths or sorted(reached)
        return Lengths(task, trained, tuple(each for each in tested if not task.wrong_length(each)))

    @property
    def tests(self) -> tuple[list[Test], int]:
        """Tests of the trained model, and the sequences of each."""
        lengths = self.lengths
        samples = self.data.held_out_samples
        is_arithmetic = isinstance(lengths.task, ArithmeticTask)
        tests = lengths.task.tests(lengths.trained if is_arithmetic else lengths.tested)
        if samples:
            return (tests, -(-samples // len(tests)) if is_arithmetic else samples)
        return ([], 0)

    @property
    def test_tokens(self) -> int:
        lengths = self.lengths
        return max(self.data.window, lengths.task.tokens(lengths.tested or lengths.trained))

    def configuration(self) -> dict[str, Any]:
        """Return the fields of the model's configuration. Raises UserError: options that the encoding does not have."""
        task = self.lengths.task
        model = self.model
        words = new_model.Words(task.vocabulary, special=True)
        whole = model.position_options.get("max_range") or DRAWN_FROM * self.test_tokens
        signs = [number for letter, number in words.get_vocab().items() if letter in task.signs]
        # an encoding that draws positions has room for the longest test; one with segments ends them at the signs, so
        # that a number is a segment
        own = {
            "max_range": whole,
            "evaluation_length": min(whole, self.test_tokens),
            "separators": sorted(signs),
        }
        encoding = model.position_encoding
        known = {
            name: own[name]
            for name in own
            if not encodings.check_options(encoding, {name: own[name]})
        }
        options = known | model.position_options
        return new_model.configuration(
            model, self.data.window, words, len(words), options, words.pad_token_id
        )

    def outline(self) -> dict[str, str]:
        data = self.data
        lengths = self.lengths
        sizes = lengths.task.sizes
        if isinstance(lengths.task, ArithmeticTask):
            shown = f"up to {data.max_digits:,} {sizes[0]}, {data.max_digits_second:,} {sizes[1]}"
            answered = (
                f"about {data.held_out_samples:,} problems of these lengths kept from training"
            )
        else:
            shown = (
                f"{' to '.join(f'{each:,}' for each in dict.fromkeys(lengths.trained))} {sizes[0]}"
            )
            tests = len(lengths.task.tests(lengths.tested))
            answered = (
                f"{data.held_out_samples:,} sequences of each of {tests} tests kept from training"
            )
        return {
            **self.model.outline(),
            "data": f"{data.task}: {shown}; sequences of up to {data.window:,} tokens",
            "held out": answered if data.held_out_samples else "nothing",
        }

    @rule("task", *_OF_A_KIND)
    def _fields(self) -> Iterator[Problem]:
        for name, kind in _OF_A_KIND.items():
            value = getattr(self.data, name)
            if value is not None and not isinstance(TASKS[self.data.task], kind):
                own = ", ".join(each for each, other in _OF_A_KIND.items() if other is not kind)
                yield Problem(
                    name, value, f"{self.data.task} does not have it", f"leave it out; it has {own}"
                )

    @rule("task", "max_digits", "max_digits_second", "test_digits")
    def _digits(self) -> Iterator[Problem]:
        data = self.data
        task = TASKS[self.data.task]
        if not isinstance(task, ArithmeticTask):
            return
        for name, largest in zip(("max_digits", "max_digits_second"), task.largest, strict=True):
            size = getattr(data, name)
            limit = min(largest, LONGEST)
            if size is not None and size > limit:
                yield Problem(name, size, "out of range", f"give 1 to {limit}")
        if data.max_digits is DERIVED:
            remedy = "write max_digits: in the recipe, or --max_digits VALUE"
            yield Problem("max_digits", None, "missing", remedy)
        elif "test_digits" in self.given:
            trained = max(self.lengths.trained)
            if data.test_digits < trained:
                yield Problem(
                    "test_digits",
                    data.test_digits,
                    "shorter than what is trained",
                    f"give {trained} or more",
                )
            if data.test_digits > arithmetic.LONGEST:
                yield Problem(
                    "test_digits",
                    data.test_digits,
                    "too long",
                    f"give {arithmetic.LONGEST} or less",
                )

    @rule("task", "task_options", "train_lengths", "test_lengths")
    def _options_and_lengths(self) -> Iterator[Problem]:
        data = self.data
        task = self.lengths.task
        if not isinstance(task, AddressingTask):
            return
        if wrong_options := generated.check(data.task, data.task_options):
            yield from wrong_options
            return
        if data.train_lengths is DERIVED:
            remedy = "write train_lengths: [SHORTEST, LONGEST] in the recipe, or --train_lengths SHORTEST LONGEST"
            yield Problem("train_lengths", None, "missing", remedy)
        elif instead := wrong_trained(task, data.train_lengths):
            yield Problem(
                "train_lengths", data.train_lengths, f"{data.task} has no such sequences", instead
            )
        if not data.test_lengths:
            remedy = "leave it out, and to score nothing give held_out_samples: 0"
            yield Problem("test_lengths", data.test_lengths, "no length", remedy)
        for each in data.test_lengths:
            if instead := task.wrong_length(each):
                yield Problem("test_lengths", each, f"{data.task} has no such sequences", instead)

    @rule("task", *_OF_A_KIND, "window")
    def _window(self) -> Iterator[Problem]:
        if isinstance(TASKS[self.data.task], ArithmeticTask) and self.data.max_digits is DERIVED:
            return
        longest = self.lengths.task.tokens(self.lengths.trained)
        if self.data.window < longest and "window" in self.given:
            wrong = f"the longest training sequence has {longest} tokens"
            yield Problem(
                "window", self.data.window, wrong, f"give {longest} or more, or leave it out"
            )

    @rule("max_steps", "num_train_epochs")
    def _steps(self) -> Iterator[Problem]:
        # epochs of endless sequences would be no steps at all
        epochs = self.trainer.num_train_epochs if "num_train_epochs" in self.given else 0
        if epochs > 0 and self.trainer.max_steps <= 0:
            wrong = "problems are generated without end"
            yield Problem(
                "num_train_epochs", epochs, wrong, "leave it out, and give max_steps in its place"
            )
