"""Runs on a generated task: a new model trained on sequences drawn as needed, and the share of right held-out
answers."""

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

from torch import nn
from transformers import TrainerCallback

from tape_ds import encodings
from tape_ds.config.generated import GeneratedRecipe
from tape_ds.config.scale import check_model
from tape_ds.data.generated.arithmetic import ArithmeticTask
from tape_ds.data.generated.sequences import GeneratedSequences
from tape_ds.data.generated.task import GeneratedSample, Test
from tape_ds.distributed.distributed_map import distributed_map
from tape_ds.errors import raise_if_any
from tape_ds.methods import init_weights
from tape_ds.models.llama import evaluated_at
from tape_ds.run_folder import RESULTS
from tape_ds.scoring import exact_match
from tape_ds.scoring.exact_match import AnswerCount
from tape_ds.scoring.losses import bare
from tape_ds.training import tables
from tape_ds.training.callbacks import ScoredAfter
from tape_ds.training.run import Run, RunContext, sample_count, weights_dtype

SEED = 0
"""Of the tests, the same in every run."""


@dataclass(frozen=True, kw_only=True)
class GeneratedRun(Run):
    """A run that trains a model from nothing on a generated task."""

    FILE: ClassVar[str]
    """Name of the stored scores."""

    @classmethod
    def resolve(cls, recipe: GeneratedRecipe) -> RunContext:
        config = recipe.checked_config()
        raise_if_any(check_model(recipe.scale, config))
        return RunContext(recipe=recipe, config=config, tokenizer=recipe.tokenizer())

    @classmethod
    def read(cls, context: RunContext) -> "GeneratedRun":
        recipe = context.recipe
        sequences = GeneratedSequences(  # nothing is read: they are drawn as needed
            recipe.lengths.task,
            recipe.lengths.trained,
            samples=sample_count(recipe, sequences=0),
            seed=context.arguments.seed,
            step_sequences=recipe.global_batch_size,
        )
        return cls(**vars(context), sequences=sequences)

    def load_model(self) -> nn.Module:
        return init_weights.build(self.config, self.arguments.seed, weights_dtype(self.arguments))

    @classmethod
    def fingerprints_of(cls, recipe: GeneratedRecipe, *, held_out: bool = False) -> dict[str, str]:
        lengths = recipe.lengths
        family = "arithmetic" if isinstance(lengths.task, ArithmeticTask) else "addressing"
        return {f"{family}:{lengths.task.name}": lengths.task.fingerprint(lengths.trained)}

    @abstractmethod
    def scores(self, found: Sequence[tuple[Test, list[list[bool]]]]) -> Any:
        """Return the stored scores, from each test and which answers of its sequences are right."""

    @cached_property
    def held_out(self) -> list[tuple[Test, list[GeneratedSample]]]:
        tests, each = self.recipe.tests
        return [(test, test.task.held_out(test.size, each, SEED)) for test in tests]

    @property
    def mean_tokens(self) -> int:
        return round(self.sequences.mean_tokens)

    def outline(self) -> dict[str, str]:
        config, described = self.config, self.recipe.outline()
        sizes = f"{config.num_hidden_layers} layers of {config.hidden_size:,}, {config.num_attention_heads} heads"
        return {
            "model": f"new, {self.parameter_counts[0] / 1e6:,.1f} M parameters, {sizes}",
            "encoding": encodings.described(config),
            "data": described["data"],
            "held out": described["held out"],
        }

    def scoring(self) -> list[TrainerCallback]:
        tests, each = self.recipe.tests
        announcement = f"answering up to {len(tests) * each:,} held-out sequences"
        return [ScoredAfter(announcement, self._ask, self.output / RESULTS / self.FILE)] if tests else []

    def stored(self) -> Any:
        file = self.output / RESULTS / self.FILE
        return json.loads(file.read_text()) if self.recipe.tests[0] and file.exists() else None

    def _ask(self, model: Any) -> Any:
        def tokens(asked: tuple[Test, list[GeneratedSample]]) -> int:
            return max(asked[0].tokens, self.recipe.window)

        vocabulary = self.sequences.task.vocabulary
        found: dict[Test, list[list[bool]]] = {}
        # an encoding may follow from the length beyond the window, so only tests within it are asked together
        for length, group in groupby(sorted(self.held_out, key=tokens), key=tokens):
            asked = list(group)
            samples = [sample for _, some in asked for sample in some]
            with evaluated_at(bare(model), length):
                right = iter(exact_match.judge(bare(model), vocabulary, samples, each=distributed_map))
            found |= {test: [next(right) for _ in some] for test, some in asked}
        return self.scores([(test, found[test]) for test, _ in self.held_out])


@dataclass(frozen=True, kw_only=True)
class ArithmeticRun(GeneratedRun):
    """A run on arithmetic, whose answers are right as a whole."""

    FILE = "exact_match.json"

    def scores(self, found: Sequence[tuple[Test, list[list[bool]]]]) -> dict[str, Any]:
        """Return the share of right answers for each value of the larger size."""
        by_longest: dict[int, list[list[bool]]] = {}
        for test, some in found:
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

    def scores(self, found: Sequence[tuple[Test, list[list[bool]]]]) -> list[dict[str, Any]]:
        return [AnswerCount.of(test, some).to_dict() for test, some in found]

    def figures(self) -> dict[str, Any]:
        return {"addressing": found} if (found := self.stored()) else {}

    def show(self) -> None:
        found = map(AnswerCount.from_dict, self.stored() or [])
        tables.print_rows({f"right at {each.label}": str(each) for each in found})


def kind_of_task(recipe: GeneratedRecipe) -> type[GeneratedRun]:
    return ArithmeticRun if isinstance(recipe.lengths.task, ArithmeticTask) else AddressingRun
