"""From a checked recipe of a generated task to a run: a new model, all of it trained on sequences drawn as needed, and
how many held-out answers are right."""

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any, ClassVar

from transformers import TrainerCallback

from tape_ds import methods
from tape_ds.data.generated.arithmetic import ArithmeticTask
from tape_ds.data.generated.sequences import GeneratedSequences
from tape_ds.data.generated.task import GeneratedSample, Test
from tape_ds.errors import raise_if_any
from tape_ds.methods import init_weights
from tape_ds.model import positions
from tape_ds.model.llama import evaluated_at
from tape_ds.parallel.distributed_map import share_out
from tape_ds.recipe.generated import GeneratedRecipe
from tape_ds.recipe.scale import check_model
from tape_ds.run_folder import RESULTS
from tape_ds.scoring import exact_match
from tape_ds.scoring.causal_lm import bare
from tape_ds.scoring.exact_match import Answered
from tape_ds.training import identity, tables
from tape_ds.training.callbacks import ScoredAfter
from tape_ds.training.run import Run, sample_count, start, weights_dtype

SEED = 0
"""Of the tests: every run has the same."""


@dataclass(frozen=True, kw_only=True)
class GeneratedRun(Run):
    """A run that trains a model from nothing on a generated task."""

    FILE: ClassVar[str]
    """Name of the stored scores."""

    recipe: GeneratedRecipe
    sequences: GeneratedSequences

    @property
    @abstractmethod
    def tests(self) -> list[Test]:
        """The tests that the trained model is asked, if :attr:`samples` of each is more than 0."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """Sequences of each test."""

    @abstractmethod
    def describe_held_out(self) -> str:
        """Return what is asked, in words."""

    @abstractmethod
    def announcement(self) -> str:
        """Return what is about to be asked, in words."""

    @abstractmethod
    def scores(self, found: Sequence[list[list[bool]]]) -> Any:
        """Return what is stored of the answers that are right, in each sequence of each test."""

    @cached_property
    def held_out(self) -> list[list[GeneratedSample]]:
        """The sequences of each test."""
        return [test.task.held_out(test.size, self.samples, SEED) for test in self.tests] if self.samples else []

    @property
    def mean_tokens(self) -> int:
        """Mean tokens of the first thousand sequences."""
        return round(self.sequences.mean_tokens)

    def outline(self) -> dict[str, str]:
        config = self.config
        sizes = f"{config.num_hidden_layers} layers of {config.hidden_size:,}, {config.num_attention_heads} heads"
        return {
            "model": f"new, {self.parameter_counts[0] / 1e6:,.1f} M parameters, {sizes}",
            "encoding": positions.described(config),
            "data": self.recipe.outline()["data"],
            "held out": self.describe_held_out() if self.samples else "nothing",
        }

    def fingerprints(self) -> dict[str, str]:
        return fingerprints_of(self.recipe)

    def scoring(self) -> list[TrainerCallback]:
        if not self.samples:
            return []
        return [ScoredAfter(self.announcement(), self._ask, self.output / RESULTS / self.FILE)]

    def stored(self) -> Any:
        """Return the stored scores; None if there are none."""
        file = self.output / RESULTS / self.FILE
        return json.loads(file.read_text()) if self.samples and file.exists() else None

    def _ask(self, model: Any) -> Any:
        def tokens(asked: tuple[Test, list[GeneratedSample]]) -> int:
            return max(asked[0].tokens, self.recipe.window)

        vocabulary = self.sequences.task.vocabulary
        found: dict[Test, list[list[bool]]] = {}
        # an encoding may follow from the length beyond the window, so only tests within it are asked together
        for length, group in groupby(sorted(zip(self.tests, self.held_out, strict=True), key=tokens), key=tokens):
            asked = list(group)
            samples = [sample for _, some in asked for sample in some]
            with evaluated_at(bare(model), length):
                right = iter(exact_match.judge(bare(model), vocabulary, samples, each=share_out))
            found |= {test: [next(right) for _ in some] for test, some in asked}
        return self.scores([found[test] for test in self.tests])


@dataclass(frozen=True, kw_only=True)
class ArithmeticRun(GeneratedRun):
    """A run on arithmetic, whose answers are right as a whole."""

    FILE = "exact_match.json"

    @property
    def tests(self) -> list[Test]:
        lengths = self.recipe.lengths
        return lengths.task.tests(lengths.trained)

    @property
    def samples(self) -> int:
        # the same number of every pair of lengths that has as many
        return -(-self.recipe.data.held_out_samples // len(self.tests))

    def describe_held_out(self) -> str:
        return f"{sum(map(len, self.held_out)):,} problems of these lengths that no sequence has"

    def announcement(self) -> str:
        return f"answering {sum(map(len, self.held_out)):,} held-out problems"

    def scores(self, found: Sequence[list[list[bool]]]) -> dict[str, Any]:
        """Return the share of right answers for each value of the larger size."""
        by_longest: dict[int, list[list[bool]]] = {}
        for test, some in zip(self.tests, found, strict=True):
            by_longest.setdefault(max(test.size), []).extend(some)
        return {str(longest): exact_match.whole_answers(some) for longest, some in sorted(by_longest.items())}

    def figures(self) -> dict[str, Any]:
        found = self.stored()
        if not found:
            return {}
        correct, answers = (sum(one[name] for one in found.values()) for name in ("correct", "answers"))
        whole = {"correct": correct, "answers": answers, "share": correct / answers}
        return {"exact_match": {"all": whole, "by_longest": found}}

    def show(self) -> None:
        if figures := self.figures():
            found = figures["exact_match"]
            rows = {f"exact match, longest {size}": each for size, each in found["by_longest"].items()}
            rows["exact match, all trained lengths"] = found["all"]
            tables.print_rows({name: f"{one['share']:.1%} of {one['answers']:,}" for name, one in rows.items()})


@dataclass(frozen=True, kw_only=True)
class AddressingRun(GeneratedRun):
    """A run on a task of addressing, whose answers count one by one."""

    FILE = "addressing.json"

    @property
    def tests(self) -> list[Test]:
        lengths = self.recipe.lengths
        return lengths.task.tests(lengths.tested)

    @property
    def samples(self) -> int:
        return self.recipe.data.held_out_samples

    def describe_held_out(self) -> str:
        each = f"{self.samples:,} sequences of each that no sequence of training is"
        return f"{'; '.join(map(str, self.tests))}: {each}"

    def announcement(self) -> str:
        return f"asking {self.samples:,} sequences of each of {len(self.tests)} tests"

    def scores(self, found: Sequence[list[list[bool]]]) -> list[dict[str, Any]]:
        return [Answered.of(test, some).to_dict() for test, some in zip(self.tests, found, strict=True)]

    def figures(self) -> dict[str, Any]:
        return {"addressing": found} if (found := self.stored()) else {}

    def show(self) -> None:
        found = map(Answered.from_dict, self.stored() or [])
        tables.print_rows({f"right at {each.label}": str(each) for each in found})


def fingerprints_of(recipe: GeneratedRecipe) -> dict[str, str]:
    lengths = recipe.lengths
    family = "arithmetic" if isinstance(lengths.task, ArithmeticTask) else "addressing"
    return {f"{family}:{lengths.task.name}": lengths.task.fingerprint(lengths.trained)}


def assemble(recipe: GeneratedRecipe) -> GeneratedRun:
    """Build everything up to the trainer.

    Raises:
        UserError: problems that only this machine or the run's folder shows, on every rank alike.
    """
    lengths = recipe.lengths
    kind = ArithmeticRun if isinstance(lengths.task, ArithmeticTask) else AddressingRun
    tokenizer, config, read = recipe.tokenizer(), recipe.checked_config(), partial(fingerprints_of, recipe)
    raise_if_any(check_model(recipe.scale, config))
    decides = identity.of(recipe, tokenizer, read())
    started = start(recipe, config, decides, read)
    arguments = started.arguments
    model = init_weights.build(config, arguments.seed, weights_dtype(arguments))
    prepared = methods.prepare("full", model, settings=None)
    sequences = GeneratedSequences(
        lengths.task,
        lengths.trained,
        samples=sample_count(recipe, sequences=0),
        seed=arguments.seed,
        step_sequences=recipe.global_batch_size,
    )
    return kind(
        recipe=recipe,
        arguments=arguments,
        config=config,
        model=prepared.model,
        names=prepared.names,
        tokenizer=tokenizer,
        sequences=sequences,
        identity=decides,
        resumed=started.resumed,
    )
