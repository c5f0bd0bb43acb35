"""A conversation as a model's chat template renders it, token by token, and which tokens are the assistant's.

A template with ``{% generation %}`` marks says itself what its assistant writes; transformers' mask is taken then.
Of any other, prefixes are rendered and compared: with ``before`` the conversation up to an answer, ending in the
template's own beginning of an answer (``add_generation_prompt``), and ``after`` the conversation with the answer, the
assistant's tokens are what ``after`` adds, its end of turn included. Exact as long as rendering more turns changes
nothing of what stands before them, which is looked at for every answer; a template of which it is not true (one that
drops the reasoning of former answers, as Qwen3's does) is refused.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_ds.data.chat.conversations import ASSISTANT, Conversation, without_template
from tape_ds.errors import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")


class UnfitTemplateError(ValueError):
    """A template that does not render a conversation, or not so that its answers can be told apart; says why."""


def give(tokenizer: "PreTrainedTokenizerBase", file: str | None, model: str) -> list[Problem]:
    """Make the template of ``file``, where one is given, the tokenizer's own, which is saved with it; return the
    problem of a tokenizer that has none."""
    if file is not None:
        tokenizer.chat_template = Path(file).expanduser().read_text(encoding="utf-8")
    try:
        tokenizer.get_chat_template()
    except ValueError:
        return [without_template(model)]
    return []


def encoded(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase") -> tuple[np.ndarray, np.ndarray]:
    """Return token ids int32 [n] of a conversation and whether each is the assistant's, bool [n].

    Args:
        conversation: one turn or more.
        tokenizer: with a template (:func:`give`). What it puts around a text by itself (BOS) is left to the
            template, as transformers does.

    Raises:
        UnfitTemplateError: the template refuses the conversation or is not prefix-stable.
    """
    from jinja2 import TemplateError

    try:
        if _MARKS.search(tokenizer.get_chat_template()) and tokenizer.is_fast:
            return _by_marks(conversation, tokenizer)
        return _by_prefixes(conversation, tokenizer)
    except (TemplateError, TypeError) as error:  # a TypeError where a template joins what are no texts
        raise UnfitTemplateError(f"the chat template does not render it ({error})") from error


def _by_marks(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase") -> tuple[np.ndarray, np.ndarray]:
    found: Any = tokenizer.apply_chat_template(
        conversation,
        return_dict=True,
        return_assistant_tokens_mask=True,
        tokenizer_kwargs={"verbose": False},
    )
    return np.asarray(found["input_ids"], np.int32), np.asarray(found["assistant_masks"], bool)


def _by_prefixes(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase") -> tuple[np.ndarray, np.ndarray]:
    whole = _rendered(conversation, tokenizer)
    ids = _ids(whole, tokenizer)
    targets = np.zeros(len(ids), bool)
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
        # where a token reaches over the border, common ids end before it
        targets[_common(ids, _ids(before, tokenizer)) : _common(ids, _ids(after, tokenizer))] = True
    return ids, targets


def _rendered(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase", answer_next: bool = False) -> str:
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=answer_next))


def _ids(text: str, tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Token ids of a rendered text, int32 [n], as transformers encodes one."""
    # verbose=False: no advice about the native length, which a conversation may exceed
    encoded = tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)
    return np.asarray(encoded["input_ids"], np.int32)


def _common(ids: np.ndarray, others: np.ndarray) -> int:
    """Return how many tokens two sequences begin with alike."""
    length = min(len(ids), len(others))
    differing = np.flatnonzero(ids[:length] != others[:length])
    return int(differing[0]) if len(differing) else length
