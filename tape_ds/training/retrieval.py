"""Questions within the run that trains, asked before training and after: passkeys, and RULER's.

Replies have a fixed number of tokens, so that ranks that share a model's weights stay in step.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

from transformers import PreTrainedTokenizerBase

from tape_ds import storage
from tape_ds.config.ruler_scores import RulerScores
from tape_ds.data.sources import parse_all
from tape_ds.distributed.distributed_map import distributed_map
from tape_ds.errors import Problem, collecting, raise_if_any
from tape_ds.scoring import questions, ruler_questions
from tape_ds.scoring.questions import Kind, Question, Row
from tape_ds.scoring.ruler_generators import Generators
from tape_ds.scoring.ruler_questions import RulerQuestion
from tape_ds.training.held_out import Model, ScoredAround, Variants, computing_as

Asked: TypeAlias = dict[str, list[Row]]
"""variant -> a row for each cell, with the rows of its questions as ``replies``."""


@dataclass(frozen=True)
class Retrieval:
    """Questions of one kind, with the file of the replies to them."""

    kind: Kind
    questions: Sequence[Question]
    file: Path
    show: Callable[[Asked], None]

    def around(
        self, tokenizer: PreTrainedTokenizerBase, before: Variants, after: Variants
    ) -> ScoredAround:
        """Return the callback that asks."""
        kind = self.kind
        cells = questions.grouped(self.questions, attrgetter(*kind.cell))

        def measure(model: Model, variants: Variants) -> Asked:
            def answer(question: Question) -> Row:
                (row,) = questions.answer(kind, model, tokenizer, [question], stop=False)
                return row

            found: Asked = {name: [] for name in variants}
            for name, variant in variants.items():
                for asked in cells:
                    with computing_as(model, variant, asked[0].length):
                        rows = distributed_map(answer, asked)
                    place = {field: getattr(asked[0], field) for field in kind.cell}
                    found[name].append(
                        {"variant": name, **place, **kind.counts(rows), "replies": rows}
                    )
            return found

        def asked_of(found: list[Row]) -> Any:
            of_cells = []
            for row in found:
                own = [[reply[name] for name in kind.asked] for reply in row["replies"]]
                of_cells.append([[row[name] for name in kind.cell], own])
            return of_cells

        lengths = ", ".join(
            f"{length:,}" for length in sorted({question.length for question in self.questions})
        )
        announcement = (
            "asking",
            f"{kind.announced.format(len(self.questions))} in prompts of {lengths} tokens",
        )
        return ScoredAround(
            announcement, before, after, self.file, measure, asked_of, read, write, self.show
        )

    def read(self) -> Asked:
        if self.questions:
            return read(self.file)
        return {}


def draw_ruler(tokenizer: PreTrainedTokenizerBase, asked: RulerScores) -> list[RulerQuestion]:
    """Return the same questions for every run with this tokenizer: lm-eval's seeds, and the command's haystack."""
    lengths = asked.ruler_lengths
    samples = asked.ruler_samples
    if not lengths:
        return []
    (source,) = parse_all([ruler_questions.HAYSTACK], "ruler_tasks")
    texts = [document.text for document in source.documents("heldout")]
    problems: list[Problem] = []
    found = []
    per_text = dict.fromkeys(asked.ruler_tasks, 1)
    with collecting(problems, "ruler_{}"):
        raise_if_any(
            ruler_questions.check(
                per_text, lengths, samples, tokenizer, texts, ruler_questions.HAYSTACK
            )
        )
        found = ruler_questions.draw_all(
            Generators(lambda: texts), per_text, tokenizer, lengths, samples
        )
    raise_if_any(problems)
    return [question for drawn in found for question in drawn.questions]


def write(path: Path, found: Asked) -> None:
    storage.write_json(path, rows_of(found))


def rows_of(found: Asked) -> list[Row]:
    return [row for rows in found.values() for row in rows]


def read(path: Path) -> Asked:
    """Return stored rows; those that name no variant, as older runs stored them, are left out."""
    found: Asked = {}
    for row in json.loads(path.read_text(encoding="utf-8")) if path.exists() else []:
        if "variant" in row:
            found.setdefault(row["variant"], []).append(row)
    return found
