"""What the tasks ``tape_scrolls_*`` are made of: the questions, read as everywhere in this project, and our metrics.

No dataset script and no metric from the hub is run. The questions come from the hub's published archives, or from a
folder: ``--metadata '{"data_dir": "scrolls/"}'``. The prompts are those of ``python -m evaluation scrolls``. lm-eval
would cut a long prompt from the left, where SCROLLS has its questions; with ``{"max_tokens": 8192}`` the prompt is cut
here instead, as in fine-tuning, and needs the tokenizer (the one of ``--model_args``, or ``{"tokenizer": ...}``).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tape_ds.data.scrolls import datasets, examples, prompts
from tape_ds.data.scrolls.datasets import Dataset
from tape_ds.errors import Problem, UserError
from tape_ds.scoring.text_overlap import METRICS

if TYPE_CHECKING:
    import datasets as hf_datasets
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def load(
    scrolls: str,
    split: str = "validation",
    data_dir: str | None = None,
    max_tokens: int | None = None,
    tokenizer: str | None = None,
    pretrained: str | None = None,
    hard_only: bool = False,
    **_: Any,
) -> "dict[str, hf_datasets.Dataset]":
    """The documents of a task, under the name of a split that its file gives.

    Args:
        scrolls: name of the data set, from the task's file.
        split: of the data; one whose answers are published.
        data_dir: see :func:`tape_ds.data.scrolls.examples.read`.
        max_tokens: of prompt and answer together; None: prompts are whole.
        tokenizer: folder or hub id, which counts tokens for ``max_tokens``.
        pretrained: the model, whose tokenizer counts where none is named.
        hard_only: of QuALITY, the questions that are marked as hard.

    Raises:
        UserError: no such data, questions without answers, ``max_tokens`` without a tokenizer.
    """
    from datasets import Dataset as Documents

    dataset = datasets.find(scrolls)
    found = [each for each in examples.read(scrolls, split, data_dir) if each.hard or not hard_only]
    if not found or not all(each.outputs for each in found):
        wrong = "no row of it is marked as hard" if not found else "its reference answers are not published"
        raise UserError(Problem("split", split, wrong, "take a split that has what the task needs"))
    counts = None
    if max_tokens is not None:
        if type(max_tokens) is not int:  # it comes from JSON
            remedy = "give a number: --metadata '{\"max_tokens\": 8192}'"
            raise UserError(Problem("max_tokens", max_tokens, "is no whole number", remedy))
        counts = _tokenizer(tokenizer or pretrained)
    rows = [_document(dataset, each, counts, max_tokens) for each in found]
    cut = [row["cut_tokens"] for row in rows if row["cut_tokens"]]
    if cut:
        print(f"{scrolls}: {len(cut):,} of {len(rows):,} prompts were cut, by {sum(cut):,} tokens together", flush=True)
    return {"validation": Documents.from_list(rows)}


def _document(
    dataset: Dataset, example: examples.Example, tokenizer: "PreTrainedTokenizerBase | None", max_tokens: int | None
) -> dict[str, Any]:
    """One question with its prompt as text."""
    summary = dataset.kind == "summary"
    cut, prompt = 0, f"{prompts.BEFORE}{example.input}{prompts.REQUEST}" if summary else example.input
    if tokenizer is not None and max_tokens is not None:
        reserve = prompts.reserved(dataset.answer_tokens)
        made = prompts.prompt_ids(
            dataset, example.input, tokenizer, max_tokens, reserve=reserve, reference_format=False
        )
        cut = made.cut_tokens
        if cut:  # a character of several tokens may have lost some
            prompt = tokenizer.decode(made.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            prompt = prompt.rstrip(REPLACEMENT)
    outputs = list(example.outputs)
    return {"id": example.id, "prompt": prompt, "outputs": outputs, "metric": dataset.metric, "cut_tokens": cut}


@cache
def _tokenizer(name: str | None) -> "PreTrainedTokenizerBase":
    from tape_ds.data import tokenizer as tokenizers

    if name is None:
        remedy = 'name one: --metadata \'{"max_tokens": 8192, "tokenizer": "FOLDER OR HUB ID"}\''
        raise UserError(Problem("tokenizer", None, "max_tokens counts tokens, and there is no tokenizer", remedy))
    return tokenizers.load(name)


def process_results(document: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """The values of one answer by the data set's metric, each against the reference that suits it best; 0 to 1."""
    metric = METRICS[document["metric"]]
    best = metric.best(results[0], document["outputs"])
    return {metric.name: best[0] if len(best) == 1 else list(best)}


def rouge(examples: Sequence[Sequence[float]]) -> float:
    """The geometric mean of the averages of ROUGE-1, ROUGE-2 and ROUGE-L."""
    return METRICS["rouge"].score(examples)
