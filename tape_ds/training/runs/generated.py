"""Runs on a generated task: a new model trained on sequences drawn as needed, and the share of right held-out
answers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from tape_ds import encodings
from tape_ds.data.generated.arithmetic import ArithmeticTask
from tape_ds.data.generated.sequences import GeneratedSequences
from tape_ds.data.generated.task import GeneratedSample, Test
from tape_ds.distributed.distributed_map import distributed_map
from tape_ds.models.llama import evaluated_at
from tape_ds.run_folder import RESULTS
from tape_ds.scoring import exact_match, tables
from tape_ds.scoring.exact_match import AnswerCount
from tape_ds.scoring.losses import bare
from tape_ds.training.held_out import ScoredAfter
from tape_ds.training.run import Run, sample_count

SEED = 0
"""Seed of the tests, the same in every run."""


@dataclass(frozen=True, kw_only=True)
class GeneratedRun(Run):
    """A run on arithmetic, where an answer is right as a whole, or on addressing, where each token of it counts."""

    def read_data(self) -> "GeneratedRun":
        recipe = self.recipe
        sequences = GeneratedSequences(  # nothing is read: they are drawn as needed
            recipe.lengths.task,
            recipe.lengths.trained,
            samples=sample_count(recipe, sequences=0),
            seed=self.arguments.seed,
            step_sequences=recipe.global_batch_size,
        )
        return replace(self, sequences=sequences)

    @property
    def is_arithmetic(self) -> bool:
        return isinstance(self.recipe.lengths.task, ArithmeticTask)

    @cached_property
    def held_out(self) -> list[tuple[Test, list[GeneratedSample]]]:
        tests, each = self.recipe.tests
        return [(test, test.task.held_out(test.size, each, SEED)) for test in tests]

    @property
    def mean_tokens(self) -> int:
        return round(self.sequences.mean_tokens)

    def outline(self) -> dict[str, str]:
        config = self.config
        described = self.recipe.outline()
        sizes = f"{config.num_hidden_layers} layers of {config.hidden_size:,}, {config.num_attention_heads} heads"
        return {
            "model": f"new, {self.parameter_counts[0] / 1e6:,.1f} M parameters, {sizes}",
            "encoding": encodings.described(config),
            "data": described["data"],
            "held out": described["held out"],
        }

    @property
    def file(self) -> Path:
        return self.output / RESULTS / ("exact_match.json" if self.is_arithmetic else "addressing.json")

    def scoring(self) -> list[TrainerCallback]:
        tests, each = self.recipe.tests

        def tokens(asked: tuple[Test, list[GeneratedSample]]) -> int:
            return max(asked[0].tokens, self.recipe.window)

        def measure(model: Any) -> Any:
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

        announcement = f"answering up to {len(tests) * each:,} held-out sequences"
        if tests:
            return [ScoredAfter(announcement, measure, self.file)]
        return []

    def scores(self, found: Sequence[tuple[Test, list[list[bool]]]]) -> Any:
        """Return the stored scores from each test and which answers of its sequences are right: of arithmetic the
        share for each value of the larger size."""
        if not self.is_arithmetic:
            return [AnswerCount.of(test, some).to_dict() for test, some in found]
        # whether all answers of a sequence are right
        by_longest: dict[int, list[bool]] = {}
        for test, some in found:
            by_longest.setdefault(max(test.size), []).extend(map(all, some))
        scores = {}
        for longest, right in sorted(by_longest.items()):
            scores[str(longest)] = {"correct": sum(right), "answers": len(right), "share": sum(right) / len(right)}
        return scores

    def figures(self) -> dict[str, Any]:
        if not self.recipe.tests[0] or not self.file.exists():
            return {}
        scores = json.loads(self.file.read_text())
        if not scores:
            return {}
        if not self.is_arithmetic:
            return {"addressing": scores}
        correct = sum(score["correct"] for score in scores.values())
        answers = sum(score["answers"] for score in scores.values())
        whole = {"correct": correct, "answers": answers, "share": correct / answers}
        return {"exact_match": {"all": whole, "by_longest": scores}}

    def show(self) -> None:
        figures = self.figures()
        rows = {}
        if "exact_match" in figures:
            shares = {
                f"exact match, longest {size}": score for size, score in figures["exact_match"]["by_longest"].items()
            }
            shares["exact match, all trained lengths"] = figures["exact_match"]["all"]
            for name, score in shares.items():
                rows[name] = f"{score['share']:.1%} of {score['answers']:,}"
        for values in figures.get("addressing", []):
            count = AnswerCount.from_dict(values)
            rows[f"right at {count.label}"] = str(count)
        if rows:
            tables.print_rows(rows)
