"""RULER within the run that trains: its questions, asked before training and after, as passkeys are.

Replies have a fixed number of tokens, so that ranks that share a model's weights stay in step; what follows an end of
text is cut off before a reply is scored.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from transformers import PreTrainedTokenizerBase

from tape_ds import storage
from tape_ds.data.sources import parse_all
from tape_ds.distributed.distributed_map import distributed_map
from tape_ds.errors import Problem, raise_if_any
from tape_ds.scoring import generation, replies, ruler, ruler_questions
from tape_ds.scoring.losses import bare, evaluating
from tape_ds.scoring.ruler_generators import Generators, NoQuestionError
from tape_ds.scoring.ruler_questions import RulerQuestion
from tape_ds.training.held_out import Model, ScoredAround, Variants, computing_as

Asked: TypeAlias = dict[str, list[dict[str, Any]]]
"""variant -> rows, one for each task and length."""


def draw(
    tokenizer: PreTrainedTokenizerBase, tasks: Sequence[str], lengths: Sequence[int], samples: int
) -> list[RulerQuestion]:
    """Return the same questions for every run with this tokenizer: lm-eval's seeds, and the command's haystack."""
    if not lengths:
        return []
    (source,) = parse_all([ruler_questions.HAYSTACK], "ruler_tasks")
    texts = [document.text for document in source.documents("heldout")]
    problems = ruler_questions.check(tasks, lengths, samples, tokenizer, texts, ruler_questions.HAYSTACK)
    raise_if_any([_renamed(problem) for problem in problems])
    generators = Generators(lambda: texts)
    questions: list[RulerQuestion] = []
    for task in tasks:
        for length in lengths:
            try:
                questions += ruler_questions.draw(generators, task, tokenizer, length, samples).questions
            except NoQuestionError as error:
                problems.append(_renamed(ruler_questions.too_short(task, length, error)))
    raise_if_any(problems)
    return questions


def ruler_scores(
    questions: list[RulerQuestion],
    tokenizer: PreTrainedTokenizerBase,
    before: Variants,
    after: Variants,
    file: Path,
    show: Callable[[Asked], None] | None = None,
) -> ScoredAround:
    """Return the callback that asks the questions."""

    def measure(model: Model, variants: Variants) -> Asked:
        found: Asked = {name: [] for name in variants}
        ends = generation.ends_of(model, tokenizer)
        for name, variant in variants.items():
            for task, length in dict.fromkeys((question.task, question.length) for question in questions):
                asked = [question for question in questions if (question.task, question.length) == (task, length)]
                with computing_as(model, variant, length), evaluating(bare(model)):
                    rows = distributed_map(partial(_answer, bare(model), tokenizer, ends), asked)
                found[name].append(_cell(name, task, length, rows))
        return found

    def asked_of(found: list[dict[str, Any]]) -> Any:
        return [(row["task"], row["length"], [reply["answers"] for reply in row["replies"]]) for row in found]

    lengths = ", ".join(f"{length:,}" for length in sorted({question.length for question in questions}))
    announcement = ("asking", f"{len(questions)} questions of RULER in {lengths} tokens")
    return ScoredAround(announcement, before, after, file, measure, asked_of, read, write, show)


def _answer(causal_lm: Any, tokenizer: Any, ends: Sequence[int], question: RulerQuestion) -> dict[str, Any]:
    ids = replies.reply(causal_lm, question.ids, new_tokens=question.new_tokens, length=question.length)
    end = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    reply = tokenizer.decode(ids[:end], skip_special_tokens=True)
    score = ruler_questions.score(question.task, question.document, reply)
    return {"tokens": len(question.ids), "answers": question.document["outputs"], "reply": reply, "score": score}


def _cell(variant: str, task: str, length: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    total = sum(row["score"] for row in rows)
    low, high = ruler.wilson(total, len(rows))
    counts = {"samples": len(rows), "score": total / len(rows), "low": low, "high": high}
    return {"variant": variant, "task": task, "length": length, **counts, "replies": rows}


def write(path: Path, found: Asked) -> None:
    storage.write_json(path, rows_of(found))


def rows_of(found: Asked) -> list[dict[str, Any]]:
    return [row for rows in found.values() for row in rows]


def read(path: Path) -> Asked:
    found: Asked = {}
    if path.exists():
        for row in json.loads(path.read_text(encoding="utf-8")):
            found.setdefault(row["variant"], []).append(row)
    return found


def _renamed(problem: Problem) -> Problem:
    """Return the problem with the recipe's names."""
    return Problem(f"ruler_{problem.field}", problem.value, problem.wrong, problem.remedy)
