"""Prompt and answer of a SCROLLS example as token ids, truncated where they do not fit.

As in TAPE's code, for fine-tuning and generation alike, at ``max_tokens`` 8,192:

- an answer: the first 7,991 ids of the input; then at most 200 ids of the answer, and EOS;
- a summary: ``Context:``, the input, ``Please summarize this report:``, of which the first 7,184 ids and those of the
  request at the end are kept; then at most 1,000 ids of the summary, and EOS.

Other lengths follow from ``max_tokens`` less the answer's reserve. ``reference_format`` gives the ids of the published
code: the answer begins with BOS, its first target; a text to answer from is first truncated to 20,000 words; and the
last 7 ids of a summary's prompt follow its first 7,184 even where nothing was truncated, so that a short prompt has
them twice.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tape_ds.data import prompting
from tape_ds.data.prompting import middle_ids
from tape_ds.data.scrolls.examples import Dataset
from tape_ds.errors import Problem, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# around the text of a summary
BEFORE = "Context:\n"
REQUEST = "\n Please summarize this report:"
# kept at a prompt's end by the published code: the request in Llama's vocabulary
REFERENCE_REQUEST_TOKENS = 7
# of a text, in published training; published generation reads 15,000
REFERENCE_WORDS = 20_000


@dataclass(frozen=True)
class ScrollsPrompt:
    ids: list[int]
    # tokens of the text that did not fit
    cut_tokens: int


def prompt_ids(
    dataset: Dataset,
    text_input: str,
    tokenizer: "PreTrainedTokenizerBase",
    max_tokens: int,
    *,
    reserve: int,
    reference_format: bool,
    words: int = REFERENCE_WORDS,
) -> ScrollsPrompt:
    """Return the prompt of one example, at most ``max_tokens - reserve`` ids (:func:`reserved`).

    ``words`` is the length of the text to answer from in ``reference_format``.
    """
    room = max_tokens - reserve
    beyond = 0
    summary = dataset.kind == "summary"
    kept_at_end = 0
    if summary:
        kept_at_end = REFERENCE_REQUEST_TOKENS
        # the line break is part of it, which some vocabularies join to a full stop
        if not reference_format:
            kept_at_end = max(
                len(middle_ids(f"{end}{REQUEST}", tokenizer)) - len(middle_ids(end, tokenizer))
                for end in (".", "a")
            )
        text_input = f"{BEFORE}{text_input}{REQUEST}"
    elif reference_format:
        parts = text_input.split(" ")
        text_input = " ".join(parts[:words])
        rest = " ".join(parts[words:])
        beyond = len(middle_ids(rest, tokenizer)) if rest else 0
    if room <= kept_at_end:
        wrong = f"{reserve} of them are kept for the answer, which leaves no room for a text"
        raise UserError(
            Problem("max_tokens", max_tokens, wrong, f"give more than {reserve + kept_at_end}")
        )
    ids = prompting.prompt_ids(text_input, tokenizer)
    cut = max(0, len(ids) - room)
    # the published code repeats the end of a short prompt, too
    if cut or (summary and reference_format):
        ids = ids[: room - kept_at_end] + ids[len(ids) - kept_at_end :]
    return ScrollsPrompt(ids, cut + beyond)


def answer_ids(
    output: str, tokenizer: "PreTrainedTokenizerBase", *, max_tokens: int, reference_format: bool
) -> tuple[list[int], int]:
    """Return at most ``max_tokens`` ids of a reference answer and EOS, and how many tokens did not fit.

    In ``reference_format`` the answer begins as a text does (Llama: with BOS), which counts towards ``max_tokens``.
    """
    assert tokenizer.eos_token_id is not None, "checked before sequences are made"
    ids = (prompting.prompt_ids if reference_format else middle_ids)(output, tokenizer)
    return [*ids[:max_tokens], int(tokenizer.eos_token_id)], max(0, len(ids) - max_tokens)


def reserved(answer_tokens: int) -> int:
    """Return the tokens kept free for an answer of ``answer_tokens`` and its EOS."""
    return answer_tokens + 1
