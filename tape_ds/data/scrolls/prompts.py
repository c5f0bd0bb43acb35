"""What a model reads of an example, and what it learns to write: token ids, cut where they do not fit.

As TAPE's code has it (fine-tuning and generation alike, at ``max_tokens`` 8,192):

- an answer: the input as it is, its first 7,991 ids; then 200 ids of the answer at most, and EOS;
- a summary: ``Context:``, the input, ``Please summarize this report:``, of which the first 7,184 ids and those of the
  request at the end are kept; then 1,000 ids of the summary at most, and EOS.

Other lengths follow from ``max_tokens`` less what is kept free for the answer (``reserve``). ``reference_format`` gives
the ids of the published code: the answer begins with a BOS of its own, which is the first target; a text to answer from
is cut to its first 20,000 words before anything else; and the last 7 ids of a summary's prompt are put behind its first
7,184 even where nothing was cut, so that a short prompt has them twice.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tape_ds.data import prompting
from tape_ds.data.scrolls.datasets import Dataset
from tape_ds.errors import Problem, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEFORE, REQUEST = "Context:\n", "\n Please summarize this report:"
"""What stands around the text of a summary."""
REFERENCE_REQUEST_TOKENS = 7
"""Ids at a prompt's end that the published code always keeps: those of the request in Llama's vocabulary."""
REFERENCE_WORDS = 20_000
"""Words of a text that the published code reads in training; its generation reads 15,000."""


@dataclass(frozen=True)
class ScrollsPrompt:
    """What a model reads."""

    ids: list[int]
    cut_tokens: int
    """Tokens of the text that did not fit."""


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
    """Return the prompt of one example, at most ``max_tokens - reserve`` ids.

    Args:
        dataset: says whether it is an answer or a summary that is wanted.
        text_input: of the example.
        tokenizer: of the model.
        max_tokens: of prompt and answer together.
        reserve: of those, kept free for the answer and its EOS (:func:`reserved`).
        reference_format: as the published code cuts.
        words: with it, words of the text that are read where an answer is wanted.

    Raises:
        UserError: nothing of the text fits.
    """
    room, beyond = max_tokens - reserve, 0
    summary = dataset.kind == "summary"
    kept_at_end = 0
    if summary:
        kept_at_end = REFERENCE_REQUEST_TOKENS if reference_format else _request_tokens(tokenizer)
        text_input = f"{BEFORE}{text_input}{REQUEST}"
    elif reference_format:
        parts = text_input.split(" ")
        text_input, rest = " ".join(parts[:words]), " ".join(parts[words:])
        beyond = len(encode(rest, tokenizer, begin=False)) if rest else 0
    if room <= kept_at_end:
        wrong = f"{reserve} of them are kept for the answer, which leaves no room for a text"
        raise UserError(Problem("max_tokens", max_tokens, wrong, f"give more than {reserve + kept_at_end}"))
    ids = encode(text_input, tokenizer)
    cut = max(0, len(ids) - room)
    if cut or (summary and reference_format):  # the published code repeats the end of a short prompt, too
        ids = ids[: room - kept_at_end] + ids[len(ids) - kept_at_end :]
    return ScrollsPrompt(ids, cut + beyond)


def answer_ids(
    output: str, tokenizer: "PreTrainedTokenizerBase", *, max_tokens: int, reference_format: bool
) -> tuple[list[int], int]:
    """Return the ids of a reference answer, at most ``max_tokens`` of them and EOS, and how many tokens did not fit.

    Args:
        output: the answer's text.
        tokenizer: of the model, with an EOS token.
        max_tokens: of the answer without EOS; :attr:`tape_ds.data.scrolls.datasets.Dataset.answer_tokens`.
        reference_format: the answer begins as a text of its own does (Llama: with BOS), which counts among them.
    """
    assert tokenizer.eos_token_id is not None, "checked before sequences are made"
    ids = encode(output, tokenizer, begin=reference_format)
    return [*ids[:max_tokens], int(tokenizer.eos_token_id)], max(0, len(ids) - max_tokens)


def reserved(answer_tokens: int) -> int:
    """Return tokens that a prompt leaves free for an answer of that many tokens and its EOS."""
    return answer_tokens + 1


def encode(text: str, tokenizer: "PreTrainedTokenizerBase", begin: bool = True) -> list[int]:
    """Return the ids of ``text``, begun as the tokenizer begins a text or, without ``begin``, as the middle of one;
    never ended, since something follows."""
    if begin:
        return prompting.prompt_ids(text, tokenizer)
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _request_tokens(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return ids that the request takes at the end of a text, its line break among them, which some join to a full
    stop."""
    return max(
        len(encode(f"{end}{REQUEST}", tokenizer, begin=False)) - len(encode(end, tokenizer, begin=False))
        for end in (".", "a")
    )
