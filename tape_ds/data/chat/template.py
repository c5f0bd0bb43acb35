"""A conversation as a model's chat template renders it, token by token, and which tokens are the assistant's.

A rendering depends on the conversation, its tools, the template, the tokenizer and one fixed date (with today's date a
resumed run would train on other tokens); a template that draws at random is refused.

``{% generation %}`` marks in a template delimit the assistant's text. Without them, prefixes are rendered and compared:
with ``before`` the conversation up to an answer, ending in the template's beginning of an answer
(``add_generation_prompt``), and ``after`` the conversation with the answer, the assistant's tokens are what ``after``
adds, its end of turn included. This is exact if rendering more turns does not change earlier ones, which is checked for
every answer; a template that does (by dropping the reasoning of former answers, as Qwen3's) is refused.
"""

import re
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import meta, nodes
from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

from tape_ds import paths
from tape_ds.data.chat.conversations import ASSISTANT, Conversation, without_template
from tape_ds.errors import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Spans = list[tuple[int, int]]  # (start, end) in characters of each of the assistant's turns

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_RANDOM = {"lipsum", "random"}  # a function and a filter of jinja


class UnfitTemplateError(ValueError):
    """A template that does not render all of a conversation, or whose answers cannot be located."""

    def __init__(self, wrong: str, remedy: str | None = None):
        super().__init__(wrong)
        self.remedy = remedy or (
            "correct the template, give one with {% generation %} marks around what the assistant writes "
            "(--chat_template FILE), or other data"
        )


def give(tokenizer: "PreTrainedTokenizerBase", file: str | None, model: str) -> list[Problem]:
    """Set the tokenizer's template to that of ``file``, if given; return the problems of the template and of a slow
    tokenizer, which cannot locate an answer's tokens."""
    if file is not None:
        tokenizer.chat_template = paths.of(file).read_text(encoding="utf-8")
    try:
        tokenizer.get_chat_template()
    except ValueError:
        return [without_template(model)]
    if not tokenizer.is_fast:
        wrong = "its tokenizer does not locate its tokens in a text"
        return [Problem("model", model, wrong, "give one with tokenizer.json")]
    try:
        drawn = _RANDOM & names(tokenizer)[1]
    except Exception as error:  # jinja's own, of many kinds
        return [Problem("chat_template", file, f"it is not a jinja template ({error})", "correct it")]
    if drawn:
        wrong = f"it draws at random ({', '.join(sorted(drawn))}), so that no two runs read the same"
        return [Problem("chat_template", file, wrong, "give one that does not: --chat_template FILE")]
    return []


def is_dated(tokenizer: "PreTrainedTokenizerBase") -> bool:
    return "strftime_now" in names(tokenizer)[1]


def names(tokenizer: "PreTrainedTokenizerBase") -> tuple[set[str], set[str]]:
    """Return the variables that a tokenizer's templates read from outside, and all names and filters in them."""
    templates = tokenizer.chat_template
    variables, used = set(), set()
    for text in templates.values() if isinstance(templates, dict) else [templates]:  # one for tools, perhaps
        tree = _compile_jinja_template(text).environment.parse(text)
        variables |= meta.find_undeclared_variables(tree)
        used |= {node.name for node in tree.find_all((nodes.Name, nodes.Filter))}
    return variables, used


def encoded(
    conversation: Conversation,
    tokenizer: "PreTrainedTokenizerBase",
    tools: Sequence[dict[str, Any]] | None = None,
    day: date | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the token ids of a conversation, int32 [n], and whether each is the assistant's, bool [n].

    ``day`` is the date for a template that writes one.

    Raises:
        UnfitTemplateError: the template refuses the conversation, ignores a part of it, or changes earlier turns.
    """
    variables: dict[str, Any] = dict(tokenizer.special_tokens_map)
    if day is not None:
        variables["strftime_now"] = day.strftime

    def render(turns: Conversation, answer_next: bool = False, *, with_tools: bool = True) -> tuple[str, Spans]:
        # not apply_chat_template: its mask ends with the first token of a last character
        given = tools if with_tools else None
        compiled = _compile_jinja_template(tokenizer.get_chat_template(tools=given))
        return _render_with_assistant_indices(compiled, turns, given, None, answer_next, **variables)

    try:
        is_marked = _MARKS.search(tokenizer.get_chat_template(tools=tools))
        text, spans = render(conversation) if is_marked else _by_prefixes(conversation, render)
        without = render(conversation, with_tools=False)[0] if tools else None
    except UnfitTemplateError:
        raise
    except Exception as error:  # a template may raise anything
        raise UnfitTemplateError(f"the chat template does not render it ({error})") from error
    if text == without:
        remedy = "give a template that renders tools (--chat_template FILE), or remove the column"
        raise UnfitTemplateError("it has tools, and the chat template renders none", remedy)
    for turn, message in enumerate(conversation):
        role = message["role"]
        if role in ("user", ASSISTANT):  # every template renders these
            continue
        other = [*conversation]
        other[turn] = message | {"content": message["content"] + " and more"}
        try:
            is_read = render(other)[0] != text
        except Exception:  # a template that refuses the content has read it
            is_read = True
        if not is_read:
            remedy = f"give a template that renders the role {role} (--chat_template FILE), or take those turns out"
            raise UnfitTemplateError(f"turn {turn + 1}: the chat template leaves the role {role} out", remedy)

    # verbose=False: no warning about the native length, which a conversation may exceed
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    starts, ends = np.array(encoding["offset_mapping"], np.int64).reshape(-1, 2).T
    targets = np.zeros(len(starts), bool)
    for start, end in spans:  # every token with a character of an answer: one character may be several tokens
        targets[np.searchsorted(ends, start, "right") : np.searchsorted(starts, end)] = True
    return np.asarray(encoding["input_ids"], np.int32), targets


def _by_prefixes(conversation: Conversation, render: Callable[..., tuple[str, Spans]]) -> tuple[str, Spans]:
    (whole, _), spans = render(conversation), []
    for turn, message in enumerate(conversation):
        if message["role"] != ASSISTANT:
            continue
        if turn == 0:
            raise UnfitTemplateError("it begins with an answer, before which nothing can be rendered")
        before, _ = render(conversation[:turn], answer_next=True)
        after, _ = render(conversation[: turn + 1])
        if not after.startswith(before):
            wrong = "the chat template begins an answer that is there otherwise than one that is asked for"
            raise UnfitTemplateError(f"turn {turn + 1}: {wrong} (add_generation_prompt)")
        if not whole.startswith(after):
            wrong = "the chat template renders it otherwise once more turns follow"
            raise UnfitTemplateError(f"turn {turn + 1}: {wrong}")
        spans.append((len(before), len(after)))
    return whole, spans


def ends(ids: np.ndarray, targets: np.ndarray, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Return the last token of each answer of a conversation, white space ignored; -1 unless it is a special or added
    token."""
    markers = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    last_tokens = []
    borders = np.flatnonzero(np.diff(targets, prepend=False, append=False))
    for start, end in zip(borders[::2], borders[1::2], strict=True):
        last = next((token for token in ids[start:end].tolist()[::-1] if tokenizer.decode([token]).strip()), -1)
        last_tokens.append(last if last in markers else -1)
    return last_tokens
