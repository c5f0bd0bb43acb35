"""Runs on a generated task: a new model trained on sequences drawn as needed, and the share of right held-out
answers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from transformers import TrainerCallback

from tape_ds import encodings
from tape_ds.config.generated import GeneratedRecipe
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.generated.arithmetic import ArithmeticTask
from tape_ds.data.generated.sequences import GeneratedSequences
from tape_ds.data.generated.task import GeneratedSample, Test
from tape_ds.distributed.distributed_map import distributed_map
from tape_ds.models.changed_positions import evaluated_at
from tape_ds.run_folder import RESULTS
from tape_ds.scoring import exact_match, tables
from tape_ds.scoring.exact_match import AnswerCount
from tape_ds.scoring.losses import bare
from tape_ds.training.held_out import Model, ScoredAfter
from tape_ds.training.job import TrainingJob
from tape_ds.training.run import Data, Figures, Run, sample_count

SEED = 0
"""Seed of the tests, the same in every run."""


Scores: TypeAlias = dict[str, dict[str, float]]
"""Value of the larger size -> its answers, those that are right, and their share."""


@dataclass(frozen=True, kw_only=True)
class DataToGenerate(Data):
    """Sequences that are drawn as needed."""

    sequences: GeneratedSequences


class GeneratedRun(Run[GeneratedRecipe, DataToGenerate]):
    """A run on arithmetic, where an answer is right as a whole, or on addressing, where each token of it counts."""

    @classmethod
    def read_data(cls, job: TrainingJob[GeneratedRecipe]) -> DataToGenerate:
        recipe = job.recipe
        sequences = GeneratedSequences(
            recipe.lengths.task,
            recipe.lengths.trained,
            samples=sample_count(recipe, sequences=0),
            seed=job.arguments.seed,
            step_sequences=recipe.global_batch_size,
        )
        return DataToGenerate(sequences=sequences, bad_rows=BadRows())

    @property
    def is_arithmetic(self) -> bool:
        return isinstance(self.recipe.lengths.task, ArithmeticTask)

    @cached_property
    def held_out(self) -> list[tuple[Test, list[GeneratedSample]]]:
        tests, each = self.recipe.tests
        return [(test, test.task.held_out(test.size, each, SEED)) for test in tests]

    @property
    def mean_tokens(self) -> int:
        return round(self.data.sequences.mean_tokens)

    def outline(self) -> dict[str, str]:
        described = self.recipe.outline()
        return {
            "model": self.new_model,
            "encoding": encodings.described(self.config),
            "data": described["data"],
            "held out": described["held out"],
        }

    @property
    def file(self) -> Path:
        return (
            self.output
            / RESULTS
            / ("exact_match.json" if self.is_arithmetic else "addressing.json")
        )

    def scoring(self) -> list[TrainerCallback]:
        tests, each = self.recipe.tests

        def tokens(asked: tuple[Test, list[GeneratedSample]]) -> int:
            return max(asked[0].tokens, self.recipe.window)

        def measure(model: Model) -> Scores | list[dict[str, object]]:
            vocabulary = self.recipe.lengths.task.vocabulary
            found: dict[Test, list[list[bool]]] = {}
            # an encoding may follow from the length beyond the window, so only tests within it are asked together
            for length, group in groupby(sorted(self.held_out, key=tokens), key=tokens):
                asked = list(group)
                samples = [sample for _, some in asked for sample in some]
                with evaluated_at(bare(model), length):
                    right = iter(
                        exact_match.judge(bare(model), vocabulary, samples, each=distributed_map)
                    )
                found |= {test: [next(right) for _ in some] for test, some in asked}
            right_of = [(test, found[test]) for test, _ in self.held_out]
            if self.is_arithmetic:
                return self.scores(right_of)
            return [AnswerCount.of(test, some).to_dict() for test, some in right_of]

        announcement = f"answering up to {len(tests) * each:,} held-out sequences"
        if tests:
            return [ScoredAfter(announcement, measure, self.file)]
        return []

    def scores(self, found: Sequence[tuple[Test, list[list[bool]]]]) -> Scores:
        """Return the scores of arithmetic from each test and which answers of its sequences are right."""
        # whether all answers of a sequence are right
        by_longest: dict[int, list[bool]] = {}
        for test, some in found:
            by_longest.setdefault(max(test.size), []).extend(map(all, some))
        scores: Scores = {}
        for longest, right in sorted(by_longest.items()):
            scores[str(longest)] = {
                "correct": sum(right),
                "answers": len(right),
                "share": sum(right) / len(right),
            }
        return scores

    def _stored(self) -> Scores | list[dict[str, object]]:
        """Return what :meth:`scoring` stored; empty where nothing was."""
        if not self.recipe.tests[0] or not self.file.exists():
            return {}
        stored: Scores | list[dict[str, object]] = json.loads(self.file.read_text())
        return stored

    def figures(self) -> Figures:
        scores = self._stored()
        if not scores:
            return {}
        if isinstance(scores, list):
            return {"addressing": scores}
        return {"exact_match": {"all": _together(scores), "by_longest": scores}}

    def show(self) -> None:
        scores = self._stored()
        if not scores:
            return
        rows = {}
        if isinstance(scores, list):
            for values in scores:
                count = AnswerCount.from_dict(values)
                rows[f"right at {count.label}"] = str(count)
        else:
            shares = {f"exact match, longest {size}": score for size, score in scores.items()}
            shares["exact match, all trained lengths"] = _together(scores)
            for name, score in shares.items():
                rows[name] = f"{score['share']:.1%} of {score['answers']:,}"
        tables.print_rows(rows)


def _together(scores: Scores) -> dict[str, float]:
    correct = sum(score["correct"] for score in scores.values())
    answers = sum(score["answers"] for score in scores.values())
    return {"correct": correct, "answers": answers, "share": correct / answers}
