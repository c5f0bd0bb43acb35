"""Sequences of SCROLLS fine-tuning: a prompt and one reference answer each, tokenised once.

Only the answer and its EOS are targets. :class:`tape_ds.data.order.AnswerSequences` serves them.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_ds.data import cache, placeholders
from tape_ds.data.bad_rows import BadRows, SourceBadRows
from tape_ds.data.scrolls import examples
from tape_ds.data.scrolls.examples import find
from tape_ds.data.scrolls.prompts import answer_ids, prompt_ids, reserved
from tape_ds.data.selection import spread
from tape_ds.data.tokenized import tokenizer_fingerprint
from tape_ds.errors import Problem

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

# Part of every key: raise it when the code below gives other output for the same input.
FORMAT = 2


@dataclass(frozen=True)
class SequenceForm:
    """Length and format of a sequence, see :mod:`.prompts`."""

    max_tokens: int
    # most tokens of an answer, without EOS
    answer_tokens: int
    reference_format: bool = False


@dataclass(frozen=True)
class CutText:
    # the name in stored results
    rows: int
    prompts: int
    prompt_tokens: int
    answers: int
    answer_tokens: int

    def __str__(self) -> str:
        texts = f"{self.prompts:,} of {self.rows:,} texts cut by {self.prompt_tokens:,} tokens"
        return f"{texts}; {self.answers:,} answers cut by {self.answer_tokens:,}"


def tokenize(
    name: str,
    split: str,
    data_dir: str | Path | None,
    tokenizer: "PreTrainedTokenizerBase",
    form: SequenceForm,
    cache_dir: str | Path,
    questions: int | None = None,
    bad_rows: BadRows | None = None,
) -> "datasets.Dataset":
    """Return the sequences of a split, one for each reference answer, from the cache if they are there.

    Args:
        name, split, data_dir: as for :func:`tape_ds.data.scrolls.examples.read`, with published answers.
        questions: at most this number of questions, spread evenly over the file, with their first answers; None: all.

    Returns:
        Rows ``{id: string, input_ids: list<int32>, targets: int32, cut_prompt: int32, cut_answer: int32}``: the last
        ``targets`` ids are the answer's; the last two columns count tokens that did not fit.
    """
    from datasets import Features, List, Value

    number = Value("int32")
    counts = dict.fromkeys(("targets", "cut_prompt", "cut_answer"), number)
    features = Features({"id": Value("string"), "input_ids": List(number), **counts})
    split_bad_rows = SourceBadRows(bad_rows or BadRows(), "dataset", f"{name}/{split}")

    about = {
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "form": asdict(form),
        "questions": questions,
        **placeholders.part_of_key(tokenizer),
    }
    key = cache.key(
        "answers", format=FORMAT, data=examples.fingerprint(name, split, data_dir), **about
    )

    read = partial(examples.rows, name, split, data_dir, split_bad_rows)

    def sequences() -> Iterator[dict[str, Any]]:
        wanted = None
        # read twice: a split may have many GB
        if questions is not None:
            ids = list(dict.fromkeys(row.id for row in read()))
            wanted = {ids[place] for place in spread(len(ids), questions)}
        for row in read():
            if wanted is not None:
                if row.id not in wanted:
                    continue
                wanted.remove(row.id)
            assert row.output is not None, "splits without answers are refused with the recipe"
            style = form.reference_format
            prompt = prompt_ids(
                find(name),
                row.input,
                tokenizer,
                form.max_tokens,
                reserve=reserved(form.answer_tokens),
                reference_format=style,
            )
            answer, cut = answer_ids(
                row.output, tokenizer, max_tokens=form.answer_tokens, reference_format=style
            )
            lost = {"cut_prompt": prompt.cut_tokens, "cut_answer": cut}
            tokens = prompt.ids + answer
            found = placeholders.problem(row.id, np.array(tokens), tokenizer)
            if found is not None:
                split_bad_rows.add(Problem("dataset", f"{name}/{split}", *found))
                continue
            yield {"id": row.id, "input_ids": tokens, "targets": len(answer), **lost}

    none = Problem("dataset", name, f"its split {split} has no rows", "check the file")
    return cache.rows(cache_dir, key, features, sequences, split_bad_rows, none=none)


def cut(rows: "datasets.Dataset") -> CutText:
    prompts = rows.data.column("cut_prompt").to_numpy().astype(np.int64)
    answers = rows.data.column("cut_answer").to_numpy().astype(np.int64)
    return CutText(
        len(rows),
        int((prompts > 0).sum()),
        int(prompts.sum()),
        int((answers > 0).sum()),
        int(answers.sum()),
    )
