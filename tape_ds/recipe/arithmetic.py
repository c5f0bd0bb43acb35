"""The recipe of ``train_arithmetic.py``: a new model of any size and encoding learns to calculate, or to address."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from tape_ds.data.addressing import lengths
from tape_ds.data.addressing import tasks as addressing_tasks
from tape_ds.data.addressing.tasks import TASKS as ADDRESSING
from tape_ds.data.arithmetic import tasks
from tape_ds.data.arithmetic.tasks import TASKS, TESTED
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import DERIVED, Section, WrongValueError, missing, rule
from tape_ds.recipe import loading, new_model
from tape_ds.recipe.addressing import Addressing, wrong_trained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


DIGITS = 4
"""Stand in for digits that are missing."""
LONGEST = 200
"""Digits of an operand that is trained."""
OF_ADDRESSING = ("task_options", "train_lengths", "test_lengths")
"""Fields that only tasks of addressing have."""
OF_ARITHMETIC = ("max_digits", "max_digits_second", "test_digits")
"""Fields that only arithmetic has."""
DRAWN_FROM = 2
"""An encoding that draws positions draws them from so many times the longest test's tokens, the published ratio."""


class ArithmeticData(Section):
    """What is asked, and how long. Arithmetic has digits, and tasks of addressing have lengths."""

    task: str
    """Name of a task (docs/arithmetic.md, docs/addressing.md)."""
    max_digits: int = Field(DERIVED, ge=1)
    """The larger bound of a problem's first size: digits of the first operand (see the task). Arithmetic needs it."""
    max_digits_second: int = Field(DERIVED, ge=1)
    """The same of its second size; default max_digits."""
    test_digits: int = DERIVED
    """How long the longer operands are in tests: where the grid of ``python -m evaluation arithmetic`` ends, and what
    an encoding that must know it beforehand (``randpe``) is made for; default twice the trained ones."""
    train_lengths: list[int] = DERIVED
    """Shortest and longest text of a task of addressing (see the task for what it counts), which needs them; a single
    one for both."""
    test_lengths: list[int] = DERIVED
    """Lengths of its tests; default the longest trained one, 1.5 times and twice that."""
    task_options: dict[str, Any] = DERIVED
    """Its options; default the task's own."""
    window: int = DERIVED
    """Tokens that the model is made for (max_position_embeddings); default those of the longest training sequence."""
    held_out_samples: int = Field(1000, ge=0, le=100_000)
    """Problems of the trained lengths, kept from training, that are answered afterwards: about as many, alike over all
    pairs of lengths; 0: none. The grid of longer ones is ``python -m evaluation arithmetic``. Of a task of addressing,
    as many sequences of each of its tests."""

    @field_validator("task")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in (*TASKS, *ADDRESSING):
            raise WrongValueError("no such task", did_you_mean(name, [*TASKS, *ADDRESSING]))
        return name


@dataclass(frozen=True, kw_only=True)
class ArithmeticRecipe(new_model.NewModelRecipe):
    """A recipe of this launcher."""

    LAUNCHER: ClassVar[str] = "train_arithmetic"
    DEFAULT: ClassVar[str] = "addition_tiny"
    STAND_INS: ClassVar[Mapping[str, Any]] = {**new_model.STAND_INS, "task": "addition", "max_digits": DIGITS}
    FORMER: ClassVar[Mapping[str, str]] = {
        "eval_data": "held_out_samples: problems are drawn, not read",
        "max_length": "window",
        "method": "nothing: every parameter is trained",
        "model": "its sizes and position_encoding themselves, as fields of the recipe",
        "tokenizer": "task, which has its own letters",
        "train_data": "task: problems are drawn, not read",
        "vocab_size": "task, which has its own letters",
    }
    FULL_ROWS: ClassVar[bool] = False

    model: new_model.NewModel
    data: ArithmeticData

    @classmethod
    def derived(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Operands of one length, tests of twice that, and a window as long as the longest sequence."""
        if flat["task"] in ADDRESSING:
            lengths = Addressing.of(flat).derived()
            return lengths | new_model.derived(flat, flat["window"] or lengths["window"])
        first = DIGITS if flat["max_digits"] is None else flat["max_digits"]
        second = first if flat["max_digits_second"] is None else flat["max_digits_second"]
        window = flat["window"] or TASKS[flat["task"]].longest(first, second)
        lengths = {"max_digits_second": first, "test_digits": TESTED * max(first, second), "window": window}
        return lengths | new_model.derived(flat, window)

    @property
    def addressing(self) -> Addressing | None:
        """The task with its lengths, where it is one of addressing."""
        return Addressing.of(self.data.flat()) if self.data.task in ADDRESSING else None

    @property
    def test_tokens(self) -> int:
        """Tokens of the longest test."""
        asked = self.addressing
        longest = TASKS[self.data.task].longest(*self.tested) if asked is None else asked.test_tokens
        return max(self.data.window, longest)

    @property
    def tested(self) -> tuple[int, int]:
        """Sizes of the longest test of arithmetic, see :meth:`Task.tested`."""
        first, second = max(1, self.data.max_digits or DIGITS), max(1, self.data.max_digits_second)
        return TASKS[self.data.task].tested(first, second, self.data.test_digits)

    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """Return the task's own."""
        from tape_ds.data.arithmetic import vocabulary

        if (asked := self.addressing) is not None:
            return vocabulary.of_words(asked.task.vocabulary)
        return vocabulary.tokenizer(TASKS[self.data.task].name)

    def configuration(self) -> dict[str, Any]:
        """Return the fields of the model's configuration.

        Where ``position_options`` does not say otherwise, an encoding that draws its positions at random has them
        drawn from a range in which the longest test has room, and one with segments ends them at the signs, so that a
        number is a segment.

        Raises:
            UserError: options that the encoding does not have.
        """
        from tape_ds.model import positions

        asked, model = self.addressing, self.model
        task = TASKS[self.data.task] if asked is None else asked.task
        words = new_model.Words(task.vocabulary, special=True)
        whole = model.position_options.get("max_range") or DRAWN_FROM * self.test_tokens
        signs = [number for letter, number in words.get_vocab().items() if letter in task.signs]
        own = {"max_range": whole, "evaluation_length": min(whole, self.test_tokens), "separators": sorted(signs)}
        encoding = model.position_encoding
        known = {name: own[name] for name in own if not positions.check_options(encoding, {name: own[name]})}
        options = known | model.position_options
        return new_model.configuration(model, self.data.window, words, len(words), options, words.pad_token_id)

    def outline(self) -> dict[str, str]:
        """Model, task, lengths and what is scored."""
        data, asked = self.data, self.addressing
        if asked is None:
            sizes = TASKS[data.task].sizes
            sizes_shown = f"up to {data.max_digits:,} {sizes[0]}, {data.max_digits_second:,} {sizes[1]}"
            answered = f"about {data.held_out_samples:,} problems of these lengths that no sequence has"
        else:
            sizes_shown = f"{' to '.join(f'{each:,}' for each in dict.fromkeys(asked.trained))} {asked.task.counts}"
            answered = f"{data.held_out_samples:,} sequences of each of {len(asked.tests)} tests that no sequence is"
        return {
            **self.model.outline(),
            "data": f"{data.task}: {sizes_shown}; sequences of up to {data.window:,} tokens",
            "held out": answered if data.held_out_samples else "nothing",
        }

    @rule("task", "max_digits", "max_digits_second")
    def _task(self) -> Iterator[Problem]:
        if self.data.task not in TASKS:
            return
        for name, there_is in zip(("max_digits", "max_digits_second"), TASKS[self.data.task].largest, strict=True):
            size, limit = getattr(self.data, name), min(there_is, LONGEST)
            if not missing(size) and size > limit:
                yield Problem(name, size, "out of range", f"give 1 to {limit}")

    @rule("task", "max_digits")
    def _digits(self) -> Iterator[Problem]:
        if missing(self.data.max_digits) and self.data.task in TASKS:
            remedy = "write max_digits: in the recipe, or --max_digits VALUE"
            yield Problem("max_digits", None, "missing", remedy)

    @rule("task", "max_digits", "max_digits_second", "test_digits", "window")
    def _lengths(self) -> Iterator[Problem]:
        data = self.data
        if data.task in ADDRESSING or missing(data.max_digits):
            return
        longest = TASKS[data.task].longest(data.max_digits, data.max_digits_second)
        if data.window < longest and "window" in self.given:
            wrong = f"the longest training sequence has {longest} tokens"
            yield Problem("window", data.window, wrong, f"give {longest} or more, or leave it out")
        trained = max(data.max_digits, data.max_digits_second)
        if data.test_digits < trained and "test_digits" in self.given:
            yield Problem("test_digits", data.test_digits, "shorter than what is trained", f"give {trained} or more")
        if data.test_digits > tasks.LONGEST and "test_digits" in self.given:
            yield Problem("test_digits", data.test_digits, "too long", f"give {tasks.LONGEST:,} or less")

    @rule("max_steps", "num_train_epochs")
    def _steps(self) -> Iterator[Problem]:
        """Epochs of sequences that are drawn without end would be no steps at all."""
        epochs = self.trainer_value("num_train_epochs") if "num_train_epochs" in self.given else 0
        if epochs > 0 and self.trainer_value("max_steps") <= 0:
            wrong = "problems are drawn, and have no end"
            yield Problem("num_train_epochs", epochs, wrong, "give max_steps in its place")

    @rule("task", *OF_ADDRESSING, *OF_ARITHMETIC)
    def _fields(self) -> Iterator[Problem]:
        """Each field with the tasks that have it."""
        data, is_ours = self.data, self.data.task in ADDRESSING
        own = ", ".join(OF_ADDRESSING if is_ours else OF_ARITHMETIC)
        for name in OF_ARITHMETIC if is_ours else OF_ADDRESSING:
            if not missing(getattr(data, name)):
                yield Problem(name, getattr(data, name), f"{data.task} does not have it", f"leave it out; it has {own}")

    @rule("task", *OF_ADDRESSING)
    def _options_and_lengths(self) -> Iterator[Problem]:
        data = self.data
        if data.task not in ADDRESSING:
            return
        wrong_options = addressing_tasks.check(data.task, data.task_options)
        yield from wrong_options
        if wrong_options:
            return
        task = addressing_tasks.make(data.task, data.task_options)
        if missing(data.train_lengths):
            remedy = "write train_lengths: [SHORTEST, LONGEST] in the recipe, or --train_lengths SHORTEST LONGEST"
            yield Problem("train_lengths", None, "missing", remedy)
        elif instead := wrong_trained(task, data.train_lengths):
            yield Problem("train_lengths", data.train_lengths, f"{data.task} has no such sequences", instead)
        if not data.test_lengths:
            remedy = "leave it out, or give held_out_samples: 0 to score nothing"
            yield Problem("test_lengths", data.test_lengths, "no length", remedy)
        for each in data.test_lengths:
            if instead := lengths.wrong_length(task, each):
                yield Problem("test_lengths", each, f"{data.task} has no such sequences", instead)

    @rule("task", *OF_ADDRESSING, "window")
    def _longest_sequence(self) -> Iterator[Problem]:
        if (asked := self.addressing) is not None and self.data.window < asked.window:
            wrong = f"the longest training sequence has {asked.window} tokens"
            yield Problem("window", self.data.window, wrong, f"give {asked.window} or more, or leave it out")


load = partial(loading.load, kind=ArithmeticRecipe)
