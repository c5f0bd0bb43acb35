"""From questions to texts: batches of prompts of like length, and what a model writes behind them.

A batch is one piece of work of an evaluation: it is on the disk before the next begins. Which questions share a batch
follows from the data and the batch size alone: any number of processes, and a start after a kill, make the same ones.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tape_ds.data.scrolls.datasets import Dataset
from tape_ds.data.scrolls.examples import Example
from tape_ds.data.scrolls.prompts import Prompt, prompt_ids, reserved
from tape_ds.errors import Problem, UserError
from tape_ds.scoring.generation import Draw, continue_prompts

PUBLISHED_WORDS = 15_000
"""Words of a text that the published generation reads; its fine-tuning reads 20,000."""


@dataclass(frozen=True)
class Asked:
    """A data set and what of it is asked."""

    dataset: Dataset
    examples: tuple[Example, ...]
    """All of them with reference answers, or none."""

    @property
    def answered(self) -> bool:
        """Whether the texts can be scored."""
        return bool(self.examples[0].outputs)


@dataclass(frozen=True)
class Limits:
    """How prompts are cut and texts are written."""

    max_tokens: int
    """Of prompt and text together, with an end of text."""
    answer_tokens: int
    summary_tokens: int
    reference_format: bool
    """Prompts as the published generation cuts them."""
    use_cache: bool
    top_k: int | None
    """Summaries are drawn among so many tokens; None: greedy."""
    seed: int

    def new_tokens(self, dataset: Dataset) -> int:
        """Tokens of a text at most."""
        return self.summary_tokens if dataset.kind == "summary" else self.answer_tokens

    def prompt(self, dataset: Dataset, text: str, tokenizer: PreTrainedTokenizerBase) -> Prompt:
        """What a model reads of one example.

        Raises:
            UserError: nothing of the text fits.
        """
        return prompt_ids(
            dataset,
            text,
            tokenizer,
            self.max_tokens,
            reserve=reserved(self.new_tokens(dataset)),
            reference_format=self.reference_format,
            words=PUBLISHED_WORDS,
        )


@dataclass(frozen=True)
class Batch:
    """Questions that are answered together."""

    dataset: Dataset
    examples: tuple[Example, ...]

    @property
    def key(self) -> str:
        """Its name among all batches of an evaluation."""
        return f"{self.dataset.name}/{self.examples[0].id}"


def check(asked: Sequence[Dataset], tokenizer: PreTrainedTokenizerBase, limits: Limits) -> list[Problem]:
    """Limits that leave no room for a text, and a format that ends before it begins."""
    problems: list[Problem] = []
    for dataset in asked:
        try:
            limits.prompt(dataset, "", tokenizer)
        except UserError as error:
            found = [Problem(f"--{each.field}", each.value, each.wrong, each.remedy) for each in error.problems]
            problems += [each for each in found if each not in problems]
    begins = tokenizer.bos_token_id
    if limits.reference_format and begins is not None and begins == tokenizer.eos_token_id:
        wrong = "a model trained so begins its answer with BOS, which is this tokenizer's end of text, too"
        problems.append(Problem("--reference_format", True, wrong, "leave it out"))
    return problems


def batches(asked: Sequence[Asked], size: int, alone: bool) -> list[Batch]:
    """Questions of like length together, the longest first.

    Args:
        asked: data sets and their questions.
        size: of a batch, at most.
        alone: summaries are drawn, so each is a batch of its own: its text follows from the seed and its id.
    """
    found = []
    for each in asked:
        step = 1 if alone and each.dataset.kind == "summary" else size
        longest_first = sorted(each.examples, key=lambda example: -len(example.input))
        starts = range(0, len(longest_first), step)
        found += [Batch(each.dataset, tuple(longest_first[start : start + step])) for start in starts]
    return sorted(found, key=lambda batch: -len(batch.examples[0].input))


def write(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ends: Sequence[int], limits: Limits, batch: Batch
) -> dict[str, dict[str, Any]]:
    """What the model writes for a batch's questions, by id, with what was cut and counted."""
    prompts = [limits.prompt(batch.dataset, example.input, tokenizer) for example in batch.examples]
    most = limits.new_tokens(batch.dataset)
    draw = None
    if limits.top_k is not None and batch.dataset.kind == "summary":
        draw = Draw(limits.top_k, _seed(limits.seed, batch.key))
    given = [prompt.ids for prompt in prompts]
    texts = continue_prompts(model, given, new_tokens=most, ends=ends, use_cache=limits.use_cache, draw=draw)
    return {
        example.id: {
            "text": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            "prompt_tokens": len(prompt.ids),
            "cut_tokens": prompt.cut_tokens,
            "new_tokens": len(ids),
            "ended": len(ids) < most,
        }
        for example, prompt, ids in zip(batch.examples, prompts, texts, strict=True)
    }


def tokens(written: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, int]:
    """Tokens read and written in all."""
    entries = [entry for by_id in written.values() for entry in by_id.values()]
    return {name: sum(entry[name] for entry in entries) for name in ("prompt_tokens", "new_tokens")}


def _seed(seed: int, key: str) -> int:
    """A seed for one text, independent of what else is written."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{key}".encode()).digest()[:6], "big")
