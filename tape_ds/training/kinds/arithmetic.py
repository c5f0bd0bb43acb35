"""From a checked recipe of drawn sequences to a run; of arithmetic: problems drawn as they are needed, others to
answer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from tape_ds import methods
from tape_ds.data.arithmetic import sequences, split, vocabulary
from tape_ds.data.arithmetic.sequences import ArithmeticSequences
from tape_ds.data.arithmetic.tasks import TASKS
from tape_ds.errors import raise_if_any
from tape_ds.methods import init_weights
from tape_ds.parallel.distributed_map import share_out
from tape_ds.recipe.arithmetic import ArithmeticRecipe
from tape_ds.recipe.scale import check_model
from tape_ds.scoring import exact_match
from tape_ds.scoring.answers import Asked
from tape_ds.scoring.exact_match import ExactMatch
from tape_ds.training import identity, tables
from tape_ds.training.callbacks import ScoredAfter
from tape_ds.training.kinds.addressing import AddressingRun
from tape_ds.training.kinds.drawn import DrawnRun
from tape_ds.training.run import sample_count, start, weights_dtype

SCORES = "results/exact_match.json"


@dataclass(frozen=True)
class HeldOutProblem:
    """A problem that no sequence has."""

    longest: int
    """The larger of its two sizes."""
    asked: Asked


@dataclass(frozen=True, kw_only=True)
class Arithmetic(DrawnRun):
    """A run that trains a model from nothing to calculate."""

    held_out: list[HeldOutProblem]

    @staticmethod
    def sequences_of(recipe: ArithmeticRecipe, samples: int, seed: int) -> ArithmeticSequences:
        """Of all trained lengths alike."""
        data = recipe.data
        return ArithmeticSequences(data.task, data.max_digits, data.max_digits_second, samples=samples, seed=seed)

    @staticmethod
    def held_out_of(recipe: ArithmeticRecipe) -> list[HeldOutProblem]:
        """About as many as the recipe says, the same number of every pair of trained lengths where there are so
        many."""
        data, task = recipe.data, TASKS[recipe.data.task]
        cells = [(i, j) for i in range(1, data.max_digits + 1) for j in range(1, data.max_digits_second + 1)]
        each = -(-data.held_out_samples // len(cells))
        ids_of_letters, found = vocabulary.ids_of(task.vocabulary), []
        for i, j in cells if each else []:
            for sample in split.cell(task, i, j, each, seed=0):
                ids, targets = sequences.encode(sample, ids_of_letters)
                found.append(HeldOutProblem(max(i, j), Asked(torch.tensor([ids]), targets)))
        return found

    @staticmethod
    def fingerprints_of(recipe: ArithmeticRecipe) -> dict[str, str]:
        """Of the problems."""
        data = recipe.data
        return {f"arithmetic:{data.task}": sequences.fingerprint(data.task, data.max_digits, data.max_digits_second)}

    def describe_held_out(self) -> str:
        """Return how many problems."""
        return f"{len(self.held_out):,} problems of these lengths that no sequence has"

    def scoring(self) -> list[TrainerCallback]:
        """Exact match, where there are problems to answer."""
        if not self.held_out:
            return []

        def answer(model: Any) -> dict[str, Any]:
            right = exact_match.right(model, [one.asked for one in self.held_out], each=share_out)
            return _plain(by_longest(self.held_out, right))

        return [ScoredAfter(f"answering {len(self.held_out):,} held-out problems", answer, self.output / SCORES)]

    def figures(self) -> dict[str, Any]:
        """Exact match over all held-out problems, and by the larger of their sizes."""
        found = read(self.output / SCORES) if self.held_out else {}
        return {"exact_match": {"all": total(found).to_dict(), "by_longest": _plain(found)}} if found else {}

    def show(self) -> None:
        """A line for each size, and one for all."""
        found = read(self.output / SCORES) if self.held_out else {}
        if found:
            rows = {f"exact match, longest {size}": each for size, each in found.items()}
            rows["exact match, all trained lengths"] = total(found)
            tables.print_rows({name: f"{one.share:.1%} of {one.answers:,}" for name, one in rows.items()})


def assemble(recipe: ArithmeticRecipe) -> DrawnRun:
    """Build everything up to the trainer.

    Raises:
        UserError: what only this machine or the run's folder can tell, on every rank alike.
    """
    kind: type[DrawnRun] = Arithmetic if recipe.addressing is None else AddressingRun
    tokenizer, config, read = recipe.tokenizer(), recipe.checked_config(), partial(kind.fingerprints_of, recipe)
    raise_if_any(check_model(recipe.scale, config))
    decides = identity.of(recipe, tokenizer, read())
    started = start(recipe, config, decides, read)
    arguments = started.arguments
    model = init_weights.build(config, arguments.seed, weights_dtype(arguments))
    prepared = methods.prepare("full", model, settings=None)
    return kind(
        recipe=recipe,
        arguments=arguments,
        config=config,
        model=prepared.model,
        names=prepared.names,
        tokenizer=tokenizer,
        sequences=kind.sequences_of(recipe, sample_count(recipe, sequences=0), arguments.seed),
        held_out=kind.held_out_of(recipe),
        identity=decides,
        resumed=started.resumed,
    )


def by_longest(problems: Sequence[HeldOutProblem], right: Sequence[bool]) -> dict[int, ExactMatch]:
    """Return the scores of problems by the larger of their two sizes."""
    found: dict[int, list[bool]] = {}
    for problem, correct in zip(problems, right, strict=True):
        found.setdefault(problem.longest, []).append(correct)
    return {longest: ExactMatch(sum(some), len(some)) for longest, some in sorted(found.items())}


def total(found: dict[int, ExactMatch]) -> ExactMatch:
    """Return all of them as one."""
    return ExactMatch(sum(one.correct for one in found.values()), sum(one.answers for one in found.values()))


def read(path: Path) -> dict[int, ExactMatch]:
    """Stored scores by the larger size; empty when there are none."""
    plain = json.loads(path.read_text()) if path.exists() else {}
    return {int(longest): ExactMatch.from_dict(one) for longest, one in plain.items()}


def _plain(found: dict[int, ExactMatch]) -> dict[str, Any]:
    """For JSON, whose names are texts."""
    return {str(longest): one.to_dict() for longest, one in found.items()}
