"""A conversation as a model's chat template renders it, token by token, and which tokens are the assistant's.

A template with ``{% generation %}`` marks says itself what its assistant writes.
Of any other, prefixes are rendered and compared: with ``before`` the conversation up to an answer, ending in the
template's own beginning of an answer (``add_generation_prompt``), and ``after`` the conversation with the answer, the
assistant's tokens are what ``after`` adds, its end of turn included. Exact as long as rendering more turns changes
nothing of what stands before them, which is looked at for every answer; a template of which it is not true (one that
drops the reasoning of former answers, as Qwen3's does) is refused.
"""

import re
from typing import TYPE_CHECKING

import numpy as np

from tape_ds import paths
from tape_ds.data.chat.conversations import ASSISTANT, Conversation, without_template
from tape_ds.errors import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Spans = list[tuple[int, int]]
"""(first character, the one behind the last) of each of the assistant's turns."""

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")


class UnfitTemplateError(ValueError):
    """A template that does not render a conversation, or not so that its answers can be told apart; says why."""


def give(tokenizer: "PreTrainedTokenizerBase", file: str | None, model: str) -> list[Problem]:
    """Make the template of ``file``, where one is given, the tokenizer's own, which is saved with it; return the
    problem of a tokenizer that has none, or is too slow a kind to tell an answer's tokens."""
    if file is not None:
        tokenizer.chat_template = paths.of(file).read_text(encoding="utf-8")
    try:
        tokenizer.get_chat_template()
    except ValueError:
        return [without_template(model)]
    if not tokenizer.is_fast:
        wrong = "its tokenizer does not tell where its tokens stand in a text"
        return [Problem("model", model, wrong, "give one with tokenizer.json")]
    return []


def encoded(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase") -> tuple[np.ndarray, np.ndarray]:
    """Return token ids int32 [n] of a conversation and whether each is the assistant's, bool [n].

    Args:
        conversation: one turn or more.
        tokenizer: with a template (:func:`give`), and one that tells where its tokens stand in a text. What it puts
            around a text by itself (BOS) is left to the template, as transformers does.

    Raises:
        UnfitTemplateError: the template refuses the conversation or is not prefix-stable.
    """
    try:
        marked = _MARKS.search(tokenizer.get_chat_template())
        text, spans = (_by_marks if marked else _by_prefixes)(conversation, tokenizer)
    except UnfitTemplateError:
        raise
    except Exception as error:  # a template is a program of its own, and may fail in any way
        raise UnfitTemplateError(f"the chat template does not render it ({error})") from error
    # verbose=False: no advice about the native length, which a conversation may exceed
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    starts, ends = np.array(found["offset_mapping"], np.int64).reshape(-1, 2).T
    targets = np.zeros(len(starts), bool)
    for start, end in spans:  # whoever has a character of an answer, as each part of one that is several tokens
        first, behind = np.searchsorted(ends, start, "right"), np.searchsorted(starts, end)
        targets[first:behind] = True
    return np.asarray(found["input_ids"], np.int32), targets


def _by_marks(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase") -> tuple[str, Spans]:
    """As :meth:`apply_chat_template`, whose own mask ends with the first token of a last character."""
    from transformers.utils.chat_template_utils import render_jinja_template

    (text,), (spans,) = render_jinja_template(
        [conversation],
        chat_template=tokenizer.get_chat_template(),
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
    )
    return text, spans


def _by_prefixes(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase") -> tuple[str, Spans]:
    whole, spans = _rendered(conversation, tokenizer), []
    for turn, message in enumerate(conversation):
        if message["role"] != ASSISTANT:
            continue
        if turn == 0:
            raise UnfitTemplateError("it begins with an answer, before which nothing can be rendered")
        before = _rendered(conversation[:turn], tokenizer, answer_next=True)
        after = _rendered(conversation[: turn + 1], tokenizer)
        if not after.startswith(before):
            wrong = "the chat template begins an answer that is there otherwise than one that is asked for"
            raise UnfitTemplateError(f"turn {turn + 1}: {wrong} (add_generation_prompt)")
        if not whole.startswith(after):
            raise UnfitTemplateError(f"turn {turn + 1}: the chat template renders it otherwise once more turns follow")
        spans.append((len(before), len(after)))
    return whole, spans


def _rendered(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase", answer_next: bool = False) -> str:
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=answer_next))
