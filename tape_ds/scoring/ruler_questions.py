"""RULER's questions (Hsieh et al. 2024, arXiv:2404.06654): prompts that fit a length, and the scores of replies.

Texts, answers, prompts and scores are lm-eval's (:mod:`tape_ds.scoring.ruler_generators`). What differs is the length:
lm-eval measures a text without its beginning of a text, without the answer's prefix or a chat's marks, and, of frequent
words, without the reply. Here prompt and reply have at most ``length`` tokens.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tape_ds.data.prompting import prompt_ids
from tape_ds.errors import Problem, raise_if_any
from tape_ds.numbers import length as length_label
from tape_ds.scoring import generation, ruler, ruler_generators, ruler_texts
from tape_ds.scoring.questions import Kind, Row
from tape_ds.scoring.ruler_generators import Generators, NoQuestionError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HAYSTACK = "package:lm_eval/tasks/*/README.md"
"""Data of the essays' place, unless others are named: English texts about benchmarks, of the package that has RULER."""
ROUNDS = 20
"""Attempts to find the room that prompts need besides their text."""


@dataclass(frozen=True)
class RulerQuestion:
    """One question of a task at a length."""

    task: str
    length: int
    """Tokens that prompt and reply have at most."""
    number: int
    ids: tuple[int, ...]
    """Tokens of the prompt."""
    new_tokens: int
    """Of the reply, at most."""
    document: Mapping[str, Any]
    """As lm-eval draws it; ``outputs`` are the answers."""
    text: int
    """Number of its text. Questions of one text are not independent."""

    @property
    def name(self) -> str:
        return f"{self.task} length {self.length} question {self.number}"


@dataclass(frozen=True)
class DrawnTask:
    """The questions of a task at a length."""

    questions: tuple[RulerQuestion, ...]
    room: int
    """Tokens of the longest prompt besides those that lm-eval measures."""


def draw_all(
    generators: Generators,
    per_text: Mapping[str, int],
    tokenizer: "PreTrainedTokenizerBase",
    lengths: Sequence[int],
    samples: int,
    *,
    chat: bool = False,
    seed: int | None = None,
) -> list[DrawnTask]:
    """Return the questions of every task at every length; ``per_text`` has the tasks. See :func:`draw`.

    Raises:
        UserError: with a problem for each task and length of which no question fits, or too few about a text.
    """
    of_tasks = []
    problems = []
    for task, count in per_text.items():
        for length in lengths:
            try:
                drawn = draw(
                    generators,
                    task,
                    tokenizer,
                    length,
                    samples,
                    chat=chat,
                    seed=seed,
                    per_text=count,
                )
                of_tasks.append(drawn)
            except NoQuestionError as error:
                problems.append(_too_short(task, length, error))
            except ruler_texts.TooFewKeysError as error:
                problems.append(_too_few_keys(task, count, error.keys, length))
    raise_if_any(problems)
    return of_tasks


def draw(
    generators: Generators,
    task: str,
    tokenizer: "PreTrainedTokenizerBase",
    length: int,
    samples: int,
    *,
    chat: bool = False,
    seed: int | None = None,
    per_text: int = 1,
) -> DrawnTask:
    """Return ``samples`` questions of a task that have at most ``length`` tokens with their reply.

    Args:
        chat: whether the model's chat template is around the text; the answer's prefix begins the model's turn.
        seed: see :meth:`tape_ds.scoring.ruler_generators.Generators.draw`.
        per_text: questions about each text; the first is lm-eval's own, the others are about other keys.

    Raises:
        NoQuestionError: no question fits.
        TooFewKeysError: a text holds fewer keys than ``per_text``.
    """
    new_tokens = reply_tokens(task)
    room = 0
    texts = -(-samples // per_text)
    for _ in range(ROUNDS):
        drawn = generators.draw(task, tokenizer, length, texts, room=room, seed=seed)
        documents = []
        for document in drawn:
            documents += _about(generators, task, document, per_text, seed)
        documents = documents[:samples]
        written = prompts(task, documents, tokenizer, chat=chat)
        questions = []
        for number, (document, prompt) in enumerate(zip(documents, written, strict=True)):
            ids = tuple(prompt_ids(prompt, tokenizer))
            question = RulerQuestion(
                task, length, number, ids, new_tokens, document, number // per_text
            )
            questions.append(question)
        # tokens that the marks of a chat and the answer's prefix add to the text
        excess = max(len(question.ids) for question in questions) + new_tokens - length
        if excess <= 0:
            return DrawnTask(tuple(questions), room)
        # the next texts leave so much more room
        room += excess
    raise NoQuestionError("no size of its texts was found")


def _about(
    generators: Generators, task: str, document: Mapping[str, Any], count: int, seed: int | None
) -> list[dict[str, Any]]:
    """Return the documents of a text's questions."""
    if count == 1:
        return [dict(document)]
    # a seed for each text: another number of texts changes no question
    chosen = f"{seed} {task} {document['max_length']} {document['index']}"
    return ruler_texts.questions_about(document, generators.needle, count, chosen)


def row(question: RulerQuestion, ids: Sequence[int], tokenizer: Any) -> Row:
    reply = tokenizer.decode(ids, skip_special_tokens=True)
    asked = {"tokens": len(question.ids), "answers": question.document["outputs"]}
    return {**asked, "reply": reply, "score": score(question.task, question.document, reply)}


def counts(rows: Sequence[Row]) -> Row:
    total = sum(map(itemgetter("score"), rows))
    low, high = ruler.wilson(total, len(rows))
    return {"samples": len(rows), "score": total / len(rows), "low": low, "high": high}


RULER = Kind(
    announced="{} questions of RULER",
    cell=("task", "length"),
    ends=generation.ends_of,
    row=row,
    counts=counts,
    asked=("answers",),
)


def prompts(
    task: str,
    documents: Sequence[Mapping[str, Any]],
    tokenizer: "PreTrainedTokenizerBase",
    *,
    chat: bool,
) -> list[str]:
    """Return the texts that lm-eval asks a model of a task's documents."""
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    scored = _scorer(task)
    settings = dict(ruler_generators.configuration(task))
    settings["custom_dataset"] = lambda **_: {"test": Dataset.from_list([dict(documents[0])])}
    settings["process_results"] = scored
    settings["metric_list"] = [{"metric": "score", "aggregation": "mean", "higher_is_better": True}]
    # it describes options of its own command
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    task_of_lm_eval = ConfigurableTask(config=settings)
    template = partial(_render, tokenizer) if chat else None
    texts = []
    for document in documents:
        text = task_of_lm_eval.fewshot_context(
            dict(document),
            num_fewshot=0,
            apply_chat_template=chat,
            chat_template=template,
            gen_prefix=task_of_lm_eval.doc_to_prefix(document),
        )
        texts.append(text)
    return texts


def reply_tokens(task: str) -> int:
    return int(ruler_generators.configuration(task)["generation_kwargs"]["max_gen_toks"])


def score(task: str, document: Mapping[str, Any], reply: str) -> float:
    """Return lm-eval's score of a reply, 0 to 1: the share of the answers that it contains, and for questions about
    documents, whether it contains one."""
    return float(_scorer(task)(document, [reply])[str(document["max_length"])])


def check(
    per_text: Mapping[str, int],
    lengths: Sequence[int],
    samples: int,
    tokenizer: "PreTrainedTokenizerBase",
    haystack: Sequence[str],
    haystack_spec: str,
) -> list[Problem]:
    """Return problems of lengths and numbers that are visible before one is drawn; ``per_text`` has the tasks."""
    problems = []
    for task, count in per_text.items():
        keys = ruler_generators.keys_in_text(task)
        # where it is infinite, it depends on the length
        if keys < count:
            problems.append(_too_few_keys(task, count, int(keys)))
    if not 1 <= samples <= ruler_generators.SAMPLES:
        remedy = f"give 1 to {ruler_generators.SAMPLES}"
        problems.append(
            Problem("samples", samples, "not a number of questions that RULER has", remedy)
        )
    shortest = ruler_generators.SHORTEST
    for length in lengths:
        if length < shortest:
            wrong = "RULER's texts are longer"
            problems.append(Problem("lengths", length, wrong, f"give {shortest} or more"))
    if haystack and any(map(ruler_generators.hides_in_essays, per_text)):
        longest = max(lengths)
        text = " ".join(haystack)
        # more characters than any tokenizer puts into a token on average
        tokens = len(prompt_ids(text[: 20 * longest], tokenizer))
        if tokens < longest:
            wrong = f"its texts have {tokens:,} tokens together, and a question of {longest:,} needs as many"
            problems.append(
                Problem("haystack", haystack_spec, wrong, "name longer texts, or shorter lengths")
            )
    return problems


def _too_short(task: str, length: int, error: NoQuestionError) -> Problem:
    wrong = f"too short for {task} with this tokenizer ({error})"
    return Problem(
        "lengths",
        length,
        wrong,
        f"leave out {length_label(length)}, or leave {task} out of the tasks",
    )


def _too_few_keys(task: str, asked: int, keys: int, tokens: int | None = None) -> Problem:
    where = "" if tokens is None else f" at {length_label(tokens)}"
    wrong = f"a text of {task}{where} holds {keys} keys to ask about"
    remedy = f"give {keys} or less, or leave {task} out of the tasks"
    if keys == 1:
        remedy = f"leave it out, or leave {task} out of the tasks"
    return Problem("questions_per_text", asked, wrong, remedy)


def fingerprint(questions: Sequence[RulerQuestion]) -> str:
    """Return the SHA-256 of all questions with their answers."""
    digest = hashlib.sha256()
    for question in questions:
        answers = json.dumps([question.name, question.ids, question.document["outputs"]])
        digest.update(answers.encode())
    return digest.hexdigest()


def _scorer(task: str) -> Any:
    from lm_eval.tasks.ruler import common_utils

    name = str(ruler_generators.configuration(task)["process_results"]).rpartition(".")[2]
    return getattr(common_utils, name)


def _render(tokenizer: Any, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
    """Render a chat as lm-eval does; a last turn of the model is continued."""
    text: str = tokenizer.apply_chat_template(
        messages,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=not add_generation_prompt,
    )
    return text
