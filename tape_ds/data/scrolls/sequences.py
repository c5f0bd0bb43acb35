"""Sequences of fine-tuning: a prompt and one reference answer each, tokenised once, and served in the order of a run.

Only the answer and its EOS are targets. A sequence is as long as its own text. Batches hold sequences of similar length
all the same, since the sequences of one optimizer step are ordered by length: which ones a step has is drawn from
(seed, step) without regard to length, so a step's gradient is what it would be in any other order, and only padding is
saved.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from tape_ds.data import cache, tokenized
from tape_ds.data.bad_rows import BadRows, SourceBadRows
from tape_ds.data.order import Orders, item
from tape_ds.data.scrolls import examples
from tape_ds.data.scrolls.datasets import find
from tape_ds.data.scrolls.prompts import answer_ids, prompt_ids, reserved
from tape_ds.data.selection import spread, token_counts

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

# Part of every key: raise it when the code below gives other output for the same input.
FORMAT = 2


@dataclass(frozen=True)
class SequenceForm:
    """How a sequence is cut and joined, see :mod:`.prompts`."""

    max_tokens: int
    """Of a sequence."""
    answer_tokens: int
    """Of its answer, without EOS."""
    reference_format: bool = False


@dataclass(frozen=True)
class CutText:
    """What did not fit into the sequences."""

    rows: int  # the name in stored results
    prompts: int
    """Sequences whose text is cut."""
    prompt_tokens: int
    """Tokens that these texts have lost, all together."""
    answers: int
    """Sequences whose answer is cut."""
    answer_tokens: int
    """Tokens that these answers have lost, all together."""

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
    """Return the sequences of a split, one for each reference answer, from the cache where they have been made before.

    Args:
        name, split, data_dir: as for :func:`tape_ds.data.scrolls.examples.read`, with published answers.
        tokenizer: with an EOS token.
        form: of the sequences.
        cache_dir: made if it is not there.
        questions: at most so many questions, spread evenly over the file, each with its first answer alone; None: all.
        bad_rows: what happens to lines that cannot be read; by default the first is refused.

    Returns:
        Rows ``{id: string, input_ids: list<int32>, targets: int32, cut_prompt: int32, cut_answer: int32}``: the last
        ``targets`` of ``input_ids`` are the answer's; what was cut is counted in tokens.

    Raises:
        UserError: the data, or no room for a text.
    """
    from datasets import Features, List, Value

    about = {"tokenizer": tokenized.tokenizer_fingerprint(tokenizer), "form": asdict(form), "questions": questions}

    def key() -> str:
        return cache.key("answers", format=FORMAT, data=examples.fingerprint(name, split, data_dir), **about)

    number = Value("int32")
    counts = dict.fromkeys(("targets", "cut_prompt", "cut_answer"), number)
    features = Features({"id": Value("string"), "input_ids": List(number), **counts})
    own = SourceBadRows(bad_rows or BadRows(), "dataset", f"{name}/{split}")

    def chosen() -> Iterator[dict[str, Any]]:
        read: Callable[[], Iterator[examples.ScrollsRow]]
        read = partial(examples.rows, name, split, data_dir, own)
        for row in read() if questions is None else _first_rows(read, questions):
            yield _row(name, row, tokenizer, form)

    return tokenized.cached(Path(cache_dir), cache.known(cache_dir, key), features, chosen, own)


def _first_rows(read: Callable[[], Iterator[examples.ScrollsRow]], count: int) -> Iterator[examples.ScrollsRow]:
    """Yield the first row of ``count`` questions, evenly spaced over all; read twice, since whole splits may take many
    GB."""
    ids = list(dict.fromkeys(row.id for row in read()))
    wanted = {ids[place] for place in spread(len(ids), count)}
    for row in read():
        if row.id in wanted:
            wanted.remove(row.id)
            yield row


def _row(
    name: str, row: examples.ScrollsRow, tokenizer: "PreTrainedTokenizerBase", form: SequenceForm
) -> dict[str, Any]:
    assert row.output is not None, "splits without answers are refused with the recipe"
    prompt = prompt_ids(
        find(name),
        row.input,
        tokenizer,
        form.max_tokens,
        reserve=reserved(form.answer_tokens),
        reference_format=form.reference_format,
    )
    reference_format, most = form.reference_format, form.answer_tokens
    answer, cut_answer = answer_ids(row.output, tokenizer, max_tokens=most, reference_format=reference_format)
    return {
        "id": row.id,
        "input_ids": prompt.ids + answer,
        "targets": len(answer),
        "cut_prompt": prompt.cut_tokens,
        "cut_answer": cut_answer,
    }


def cut(rows: "datasets.Dataset") -> CutText:
    """Return what the sequences of :func:`tokenize` have lost."""
    prompts, answers = (rows.data.column(name).to_numpy().astype(np.int64) for name in ("cut_prompt", "cut_answer"))
    return CutText(
        len(rows), int((prompts > 0).sum()), int(prompts.sum()), int((answers > 0).sum()), int(answers.sum())
    )


class AnswerSequences(torch.utils.data.Dataset):
    """A run's samples: a pure function of (seed, index, sequences of a step), on any number of ranks.

    Every pass over the sequences has its own order, as in :class:`tape_ds.data.order.TrainingSequences`. Within each
    stretch of ``step_sequences`` samples, those of one optimizer step, the longest come first: micro-batches follow one
    another there, so sequences that are padded together are of similar length, and ranks have as much to do at the same
    time.

    Items are dicts of tensors [t], t = the sequence's own length: ``input_ids``, ``position_ids`` (0 .. t - 1),
    ``labels`` (-100 but for the answer and its EOS, aligned with ``input_ids``), all int64, and ``document_ids`` int32
    (0).
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("input_ids", "targets")
    """Columns of ``stored``, those that :meth:`item` reads."""

    def __init__(self, stored: "datasets.Dataset", *, samples: int, seed: int, step_sequences: int):
        """Serve ``samples`` samples of ``stored`` (of :func:`tokenize`), ``step_sequences`` to a step."""
        self.stored = stored.with_format("numpy", columns=list(self.COLUMNS), dtype=np.int64)
        self.samples = samples
        self.order = Orders(seed, len(stored))
        self.step_sequences = step_sequences
        self.lengths = token_counts(stored)
        self._step = -1
        self._members: list[int] = []

    def __len__(self) -> int:
        return self.samples

    @property
    def tokens(self) -> int:
        """Tokens of all samples, padding left out."""
        whole, rest = divmod(self.samples, len(self.stored))
        last = self.order(whole)[:rest]
        return whole * int(self.lengths.sum()) + int(self.lengths[last].sum())

    def row_of(self, index: int) -> int:
        """Return the stored row behind sample ``index``."""
        step, place = divmod(index, self.step_sequences)
        if step != self._step:  # the sequences of a step, the longest first; of equal ones the one drawn first
            count, indices = len(self.stored), range(step * self.step_sequences, (step + 1) * self.step_sequences)
            drawn = [self.order(each // count)[each % count] for each in indices]
            self._members = sorted(drawn, key=lambda row: -self.lengths[row])
            self._step = step
        return int(self._members[place])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        return self.item(self.stored[self.row_of(index)])

    def item(self, row: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Return the tensors of a stored row."""
        return item(row["input_ids"], slice(len(row["input_ids"]) - int(row["targets"]), None))
