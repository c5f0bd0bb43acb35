"""Questions and metrics of the tasks ``tape_scrolls_*``.

No dataset script and no metric from the hub is run. The questions come from the hub's published archives, or from a
folder: ``--metadata '{"data_dir": "scrolls/"}'``. lm-eval would cut a long prompt from the left, where SCROLLS has its
questions; with ``{"max_tokens": 8192}`` the prompt is cut here instead, as in fine-tuning, and needs the tokenizer (the
one of ``--model_args``, or ``{"tokenizer": ...}``). ``tape-ds evaluate harness`` gives both.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from datasets import Dataset as Documents

from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.prompting import prompt_ids
from tape_ds.data.scrolls import examples, prompts
from tape_ds.errors import Problem, UserError, is_main_process
from tape_ds.scoring import text_overlap

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
PUBLISHED_WORDS = 15_000
"""Words of a text that the published generation reads; its fine-tuning reads 20,000."""


def load(
    scrolls: str,
    split: str = "validation",
    data_dir: str | None = None,
    max_tokens: int | None = None,
    answer_tokens: int | None = None,
    tokenizer: str | None = None,
    pretrained: str | None = None,
    trust_remote_code: bool = False,
    reference_format: bool = False,
    hard_only: bool = False,
    **_: Any,
) -> dict[str, Documents]:
    """Return the documents of a task, under the name of a split that its file gives.

    Args:
        scrolls: name of the data set, from the task's file.
        split: of the data; those of ``test`` have no reference answers: texts are written and not scored.
        data_dir: see :func:`tape_ds.data.scrolls.examples.read`.
        max_tokens: of prompt and answer together; None: prompts are whole.
        answer_tokens: of those, kept for the answer; default: as in TAPE's code.
        tokenizer: folder or hub id, which counts tokens for ``max_tokens``; default: that of ``pretrained``, the model.
        trust_remote_code: whether code that the tokenizer carries may run.
        reference_format: prompts as the published generation cuts them.
        hard_only: of QuALITY, the questions that are marked as hard.
    """
    dataset = examples.find(scrolls)
    chosen = [
        example
        for example in examples.read(scrolls, split, data_dir)
        if example.hard or not hard_only
    ]
    without = sum(not example.outputs for example in chosen)
    if not chosen:
        raise UserError(
            Problem("split", split, "no row of it is marked as hard", "take files that mark them")
        )
    if 0 < without < len(chosen):
        reason = f"{without} of {len(chosen)} questions of {scrolls} have no reference answer"
        raise UserError(Problem("split", split, reason, "take a split that has all or none"))
    if without and is_main_process():
        print(
            f"{scrolls}: the split {split} has no reference answers: texts are written, none is scored",
            flush=True,
        )

    counting = None
    if max_tokens is not None:
        counting = _tokenizer(tokenizer or pretrained, trust_remote_code)
        if (
            reference_format
            and counting.bos_token_id is not None
            and counting.bos_token_id == counting.eos_token_id
        ):
            reason = "a model trained so begins its answer with BOS, which is this tokenizer's end of text, too"
            raise UserError(Problem("reference_format", True, reason, "leave it out"))
    answer_room = prompts.reserved(answer_tokens or dataset.answer_tokens)
    rows = []
    cut = list[int]()
    for example in chosen:
        prompt = (
            f"{prompts.BEFORE}{example.input}{prompts.REQUEST}"
            if dataset.kind == "summary"
            else example.input
        )
        cut_tokens = 0
        reserve = answer_room
        while max_tokens is not None and counting is not None:
            form: dict[str, Any] = {"reference_format": reference_format, "words": PUBLISHED_WORDS}
            made = prompts.prompt_ids(
                dataset, example.input, counting, max_tokens, reserve=reserve, **form
            )
            cut_tokens = made.cut_tokens
            if not cut_tokens and not reference_format:
                break
            prompt = counting.decode(
                made.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            # a character of several tokens may have lost some
            prompt = prompt.rstrip(REPLACEMENT)
            # What was cut may have more tokens as a text, as when the end of the document met the request within a
            # character: cut it shorter.
            too_many = len(prompt_ids(prompt, counting)) - (max_tokens - answer_room)
            if too_many <= 0:
                break
            reserve += too_many
        known = {"id": example.id, "outputs": list(example.outputs), "metric": dataset.metric}
        rows.append({**known, "prompt": prompt, "cut_tokens": cut_tokens})
        if cut_tokens:
            cut.append(cut_tokens)
    if cut and is_main_process():
        print(
            f"{scrolls}: {len(cut):,} of {len(rows):,} prompts were cut, by {sum(cut):,} tokens together",
            flush=True,
        )
    return {"validation": Documents.from_list(rows)}


@cache
def _tokenizer(name: str | None, trust_remote_code: bool) -> "PreTrainedTokenizerBase":
    if name is None:
        remedy = 'name one: --metadata \'{"max_tokens": 8192, "tokenizer": "FOLDER OR HUB ID"}\''
        raise UserError(
            Problem(
                "tokenizer", None, "max_tokens counts tokens, and there is no tokenizer", remedy
            )
        )
    return tokenizers.load_tokenizer(name, trust_remote_code=trust_remote_code)


def process_results(document: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Return the values of one answer by the data set's metric, each against the reference that suits it best; 0 to 1.
    Without a reference there are none."""
    if not document["outputs"]:
        return {}
    best = text_overlap.best(document["metric"], results[0], document["outputs"])
    return {document["metric"]: best[0] if len(best) == 1 else list(best)}


rouge = text_overlap.score
"""Geometric mean of the averages of ROUGE-1, ROUGE-2 and ROUGE-L."""
